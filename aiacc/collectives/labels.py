"""What operations are called in errors."""

from __future__ import annotations


def label_of(kind: str, name: str | None) -> str:
    """``allreduce of 'x'``, or ``an unnamed allreduce``. Pure."""
    return f"{kind} of {name!r}" if isinstance(name, str) and name else f"an unnamed {kind}"
