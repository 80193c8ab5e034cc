"""Tensors that have a place in flat memory, and may have been given other memory.

`Module.to`, with a memory format for one, and ``tensor.data = ...`` do that to a tensor, which
stays the same object.
"""

from __future__ import annotations

import torch


def is_at(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    """Whether ``tensor`` has the memory of ``place`` in the same form."""
    return tensor.is_set_to(place) and tensor.dtype is place.dtype


def put(values: torch.Tensor, place: torch.Tensor) -> None:
    """Copy ``values`` to ``place``; they may be in the same memory in another form."""
    shared = values.untyped_storage().data_ptr() == place.untyped_storage().data_ptr()
    place.copy_(values.clone() if shared else values)


def may_move(gradient: torch.Tensor | None, passes: int) -> bool:
    """Whether a gradient that awaits so many more passes may be brought to its place now.

    One of ``backward(create_graph=True)`` may be used by the loss of the next pass, whose own
    gradient goes through it.
    """
    return passes == 0 or gradient is None or not gradient.requires_grad


def bring_back(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    """Let ``tensor`` be at ``place`` again, with its values and the strides of ``place``.

    False if it is of another shape, dtype or device by now.
    """
    if is_at(tensor, place):
        return True
    if (tensor.shape, tensor.dtype, tensor.device) != (place.shape, place.dtype, place.device):
        return False
    put(tensor.detach(), place)
    tensor.data = place
    return True
