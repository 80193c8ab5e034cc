"""Files that `aiacc-plan` writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Where the file of an option is written: raises ValueError, which names that, for OSError."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {option}: {error}; name another file") from error
