"""How differentiable operations are put into the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from aiacc.collectives.memory import lacks_memory


def apply(function: Any, tensor: torch.Tensor, *args: Any) -> Any:
    """Run an autograd function, outside of the graph where nobody asks for gradients.

    Its `forward` gets None for a context then, and for a tensor that it is to refuse. Its
    `backward` runs operations that are in the graph themselves where somebody asks for second
    derivatives.

    Raises:
        NotImplementedError: The tensor has a tangent.
    """
    if isinstance(tensor, torch.Tensor) and _has_graph(function, tensor):
        return function.apply(tensor, *args)
    return function.forward(None, tensor, *args)


def apply_to_group(function: Any, tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    """`apply` for a function of several tensors, which come after its other arguments."""
    have_graphs = [_has_graph(function, tensor) for tensor in tensors]
    if any(have_graphs):
        return list(function.apply(*args, *tensors))
    return list(function.forward(None, *args, *tensors))


def _has_graph(function: Any, tensor: torch.Tensor) -> bool:
    dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    if dual.tangent is not None:
        raise NotImplementedError(
            f"[torch] {function.verb}: a tensor of shape {tuple(tensor.shape)} that has a tangent "
            "(expected none, for it has no derivative in forward mode); use torch.autograd.grad, "
            "or give forward_ad.unpack_dual(tensor).primal"
        )
    return bool(tensor.requires_grad) and torch.is_grad_enabled() and not lacks_memory(tensor)


def grad_name(name: str | None) -> str | None:
    """Name of the operation that reduces the gradient of the one called ``name``."""
    return name and f"{name}.grad"
