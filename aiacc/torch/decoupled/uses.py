"""When parameters are used first, and by which module: what is learnt in the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Functions that read no element of a tensor.
_HARMLESS: frozenset[Any] = frozenset(
    [
        getattr(torch.Tensor, name).__get__
        for name in (
            "shape",
            "dtype",
            "device",
            "layout",
            "requires_grad",
            "ndim",
            "is_leaf",
            "grad",
        )
    ]
    + [
        getattr(torch.Tensor, name)
        for name in ("dim", "size", "numel", "stride", "is_contiguous", "is_floating_point")
    ]
)


class Uses(TorchFunctionMode):
    """While it is on, tells of every parameter that a function of torch is called with."""

    def __init__(self, numbers: Mapping[int, int], tell: Callable[[int], None]) -> None:
        """Tell the number of a parameter, found by the ``id`` of its tensor."""
        super().__init__()
        self._numbers = numbers
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, then call ``func``."""
        del types
        kwargs = kwargs or {}
        if func not in _HARMLESS:
            self._look([args, kwargs])
        return func(*args, **kwargs)

    def _look(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            number = self._numbers.get(id(value))
            if number is not None:
                self._tell(number)
        elif isinstance(value, list | tuple):
            self._all(value)
        elif isinstance(value, dict):
            self._all(value.values())

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._look(value)
