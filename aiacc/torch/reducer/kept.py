"""What stays with parameters from step to step, whatever buckets their gradients are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aiacc.torch.reducer.storage import Flat

#: What codecs have lost; local momentum; EF21: the gradient before, and what all know of them.
RESIDUAL, MOMENTUM, BEFORE, KNOWN = "residual", "momentum", "before", "known"
KINDS = (RESIDUAL, MOMENTUM, BEFORE, KNOWN)


class Kept:
    """Tensors of float32 by kind and name, zero until somebody writes to them.

    They are where the gradients are that they belong to, from when those first travel on.

    Attributes:
        tensors: By kind, then by name of the parameter: of its shape, and in the order of its
            elements, wherever the gradient lies.
        shapes: Of parameters, by name, for what is loaded.
    """

    def __init__(self) -> None:
        """Nothing is kept."""
        self.tensors: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in KINDS}
        self.shapes: dict[str, torch.Size] = {}

    def of_bucket(
        self,
        kind: str,
        names: Sequence[str],
        shapes: Sequence[torch.Size],
        flat: Flat | None,
        like: torch.Tensor,
    ) -> list[torch.Tensor]:
        """One tensor for each gradient, or one for all if they are views of a flat bucket.

        Those are of one dimension, on the device of ``like``, and what is kept are views of them
        from now on.
        """
        kept = self.tensors[kind]
        own = [
            self._own(kind, name, shape, like) for name, shape in zip(names, shapes, strict=True)
        ]
        if flat is None:
            kept.update(zip(names, own, strict=True))
            return [tensor.view(-1) for tensor in own]
        memory = _zeros([flat.memory.numel()], like)
        for name, tensor, view in zip(names, own, flat.views, strict=True):
            place = memory.as_strided(view.shape, view.stride(), view.storage_offset())
            kept[name] = place.copy_(tensor)
        return [memory]

    def _own(self, kind: str, name: str, shape: torch.Size, like: torch.Tensor) -> torch.Tensor:
        """Contiguous; zeros, where there is none of this shape."""
        tensor = self.tensors[kind].get(name)
        if tensor is None or tensor.shape != shape:
            return _zeros(shape, like)
        return tensor.to(like.device).contiguous()

    def multiply(self, factor: float) -> None:
        """All of it."""
        for kept in self.tensors.values():
            for tensor in kept.values():
                tensor.mul_(factor)

    def forget(self, kinds: Sequence[str]) -> None:
        """What there is of these kinds."""
        for kind in kinds:
            for tensor in self.tensors[kind].values():
                tensor.zero_()

    def names(self) -> set[str]:
        """Of the parameters with which anything stays."""
        return {name for kept in self.tensors.values() for name in kept}

    def copy(self) -> dict[str, dict[str, torch.Tensor]]:
        """All of it, in memory of its own."""
        return {
            kind: {
                name: tensor.clone(memory_format=torch.contiguous_format)
                for name, tensor in kept.items()
            }
            for kind, kept in self.tensors.items()
        }

    def load(self, tensors: dict[str, dict[str, Any]]) -> None:
        """Overwrite what is kept with what `copy` has given.

        Raises:
            ValueError: A tensor of another shape, or names none of which is known; nothing is
                changed.
        """
        names = sorted({name for kept in tensors.values() for name in kept})
        if names and self.shapes and self.shapes.keys().isdisjoint(names):
            raise ValueError(
                f"a state of {len(names)} gradients, {names[0]!r} for one (expected names such as "
                f"{next(iter(self.shapes))!r}); load the state of the same model, with the same "
                "named_parameters"
            )
        for kind, kept in tensors.items():
            for name, tensor in kept.items():
                shape = self.shapes.get(name, tensor.shape)
                if tensor.shape != shape:
                    raise ValueError(
                        f"{kind} of {name!r} of shape {tuple(tensor.shape)} (expected "
                        f"{tuple(shape)}); load the state of the same model"
                    )
        self.forget(KINDS)
        for kind, kept in tensors.items():
            for name, tensor in kept.items():
                if name not in self.tensors[kind]:
                    self.tensors[kind][name] = _zeros(tensor.shape, tensor)
                self.tensors[kind][name].copy_(tensor)


def _zeros(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(shape, dtype=torch.float32)
