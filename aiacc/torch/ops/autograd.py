"""How differentiable operations are put into the graph."""

from __future__ import annotations

from typing import Any

import torch


def apply(function: Any, tensor: torch.Tensor, *args: Any) -> Any:
    """Run an autograd function, outside of the graph where nobody asks for gradients.

    Its `forward` gets None for a context then.
    """
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
        return function.apply(tensor, *args)
    return function.forward(None, tensor, *args)


def apply_to_group(function: Any, tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    """`apply` for a function of several tensors, which come after its other arguments."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(function.apply(*args, *tensors))
    return list(function.forward(None, *args, *tensors))


def grad_name(name: str | None) -> str | None:
    """Name of the operation that reduces the gradient of the one called ``name``."""
    return name and f"{name}.grad"
