"""Which tensors of torch have memory, for whoever takes their addresses. Imports no torch."""

from __future__ import annotations

from typing import Any


def lacks_memory(tensor: Any) -> bool:
    """Whether a strided tensor has elements, and no memory of its own for them.

    It wraps other tensors, say, or its storage was freed. A view into freed memory has its offset
    for an address.
    """
    try:
        return bool(tensor.numel() > 0 and tensor.untyped_storage().data_ptr() == 0)
    except (RuntimeError, TypeError, ValueError):  # of parameters of lazy modules
        return True
