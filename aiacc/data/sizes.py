"""Amounts of memory as users write them. Pure."""

from __future__ import annotations

import re
from pathlib import Path

#: Where files are in memory.
SHARED_MEMORY = Path("/dev/shm")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {f"{unit}i": 1024**power for power, unit in enumerate(_UNITS) if unit}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_bytes(size: int | str, what: str) -> int:
    """Bytes of "8GB" (10^9), "8GiB" (2^30), "512 MB" or a number.

    Args:
        size: Number with a unit, or a number of bytes.
        what: What is said in the error.

    Raises:
        ValueError: It is none.
    """
    found = _SIZE.fullmatch(str(size))
    units = {**_UNITS, **_BINARY}
    if found is None or found[2].lower() not in units or isinstance(size, bool):
        raise ValueError(f'{what}={size!r} (expected bytes, such as 1000000, "8GB" or "8GiB")')
    return int(float(found[1]) * units[found[2].lower()])


def folder_and_bytes(
    tier: int | str | tuple[str | Path, int | str], what: str, default: Path | None = None
) -> tuple[Path, int]:
    """A tier as users give it: how many bytes in which folder.

    Raises:
        ValueError: It is neither a size, where there is a default folder, nor a folder and a size.
    """
    if isinstance(tier, tuple):
        return Path(tier[0]), parse_bytes(tier[1], what)
    if default is None:
        raise ValueError(f'{what}={tier!r} (expected a folder and a size: ("/scratch", "200GB"))')
    return default, parse_bytes(tier, what)
