"""Builds the C programs of the network, when they are first needed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.bed import BedError
from bench.machine import ROOT

_FOLDER = ROOT / "build" / "network"
_BUILD_S = 60.0


def built(name: str, flags: Sequence[str] = ()) -> Path:
    """The program or library of ``bench/bed/native/<name>.c``, compiled if the source is newer.

    Blocks: while the compiler runs.

    Raises:
        BedError: There is no compiler, or it fails.
    """
    source = Path(__file__).with_name(name + ".c")
    binary = _FOLDER / name
    if binary.exists() and binary.stat().st_mtime >= source.stat().st_mtime:
        return binary
    compiler = shutil.which("cc")
    if compiler is None:
        raise BedError(f"cc is missing, which builds {name}; install it: apt-get install gcc")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    fresh = _FOLDER / f"{name}.{os.getpid()}"
    line = [compiler, "-O2", "-Wall", "-Wextra", *flags, "-o", str(fresh), str(source)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode != 0:
        raise BedError(f"cc does not build {source}: {done.stderr.strip()}")
    return fresh.rename(binary)  # another process may be doing the same


def short_io() -> Path:
    """The library that makes socket calls short, for LD_PRELOAD. Raises BedError."""
    return built("short_io", ("-shared", "-fPIC"))
