"""Gradients of which torch counts every write, also those to their ``data``."""

from __future__ import annotations

import copy
from typing import Any

import torch


class Gradient(torch.Tensor):
    """What a parameter has as ``grad`` from when it has left until it is reduced.

    With the decoupled schedule that is always. torch's own ``data`` has a count of writes of its
    own: what is written to it would go unnoticed, after the gradient has left for the other ranks.
    Results of functions, copies and pickles are plain tensors.
    """

    # As nn.Parameter has it.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @property
    def data(self) -> torch.Tensor:
        """The values, for code that writes to them unseen by autograd."""
        return self.detach()

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        _set_data(self, values)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        """A plain copy."""
        return copy.deepcopy(self.detach(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A plain tensor."""
        plain: Any = self.detach()
        return plain.__reduce_ex__(protocol)


def watch(gradient: torch.Tensor) -> None:
    """Count writes to the ``data`` of ``gradient``, too, unless its class is somebody else's."""
    if type(gradient) is torch.Tensor:
        gradient.__class__ = Gradient


def unwatch(gradient: torch.Tensor) -> None:
    """Undo `watch`: torch's faster functions take tensors of no class but its own."""
    if type(gradient) is Gradient:
        untyped: Any = gradient
        untyped.__class__ = torch.Tensor


_set_data = getattr(torch.Tensor.data, "__set__")  # noqa: B009 - mypy takes it for a value
