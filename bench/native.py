"""Libraries and programs of bench/, which CMake builds beside the tests."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from bench.machine import ROOT

MICRO = ROOT / "build" / "dev" / "bench" / "micro"


def built(path: Path, how: str = "cmake --build --preset dev --target") -> Path:
    """The path, if there is something.

    Raises:
        RuntimeError: There is nothing.
    """
    if not path.exists():
        target = path.stem.removeprefix("lib")
        raise RuntimeError(f"{path} does not exist; {how} {target}")
    return path


def arguments(*values: Any) -> tuple[Any, ...]:
    """For a function of C: tensors and None as pointers, numbers of 64 bits."""
    return tuple(
        ctypes.c_size_t(value)
        if isinstance(value, int)
        else ctypes.c_void_p(None if value is None else value.data_ptr())
        for value in values
    )
