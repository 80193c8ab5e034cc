"""Which libraries a process has loaded, read from its memory map."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path


def mapped_libraries(*prefixes: str, process: str = "self") -> Iterator[str]:
    """Paths of the loaded files whose names begin with one of ``prefixes``, each once.

    Args:
        prefixes: Such as "libmpi.so".
        process: A process id, or this process. Of a process that may not be read, nothing.
    """
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return
    paths = dict.fromkeys("/" + line.partition("/")[2] for line in lines if "/" in line)
    yield from (path for path in paths if Path(path).name.startswith(prefixes))


def initialized_mpis() -> Iterator[ctypes.CDLL]:
    """The MPI libraries that somebody in this process has initialised."""
    for path in mapped_libraries("libmpi.so", "libmpich.so", "libmpi_abi.so"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            flag = ctypes.c_int()
            if library.MPI_Initialized(ctypes.byref(flag)) == 0 and flag.value:
                yield library
