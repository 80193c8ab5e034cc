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
    """Tensors of float32 in host memory by kind and name, zero until somebody writes to them.

    Attributes:
        tensors: By kind, then by name of the parameter: as the gradient lies in memory, in one
            dimension.
    """

    def __init__(self) -> None:
        """Nothing is kept."""
        self.tensors: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in KINDS}

    def of_bucket(
        self, kind: str, named: Sequence[tuple[str, torch.Tensor]], flat: Flat | None
    ) -> list[torch.Tensor]:
        """One tensor for each gradient, or one for all if they are views of a flat bucket."""
        kept = self.tensors[kind]
        if flat is None:
            return [
                kept.setdefault(name, torch.zeros(parameter.numel(), device="cpu"))
                for name, parameter in named
            ]
        memory = torch.zeros(flat.memory.numel(), device="cpu")
        for (name, parameter), view in zip(named, flat.views, strict=True):
            place = memory[view.storage_offset() :][: parameter.numel()]
            if name in kept:
                place.copy_(kept[name])
            kept[name] = place
        return [memory]

    def names(self) -> set[str]:
        """Of the parameters with which anything stays."""
        return {name for kept in self.tensors.values() for name in kept}

    def copy(self) -> dict[str, dict[str, torch.Tensor]]:
        """All of it, in memory of its own."""
        return {
            kind: {name: tensor.clone() for name, tensor in kept.items()}
            for kind, kept in self.tensors.items()
        }

    def load(self, tensors: dict[str, dict[str, Any]]) -> None:
        """Overwrite what is kept with what `copy` has given.

        Raises:
            ValueError: A tensor of another size.
        """
        for kind, kept in tensors.items():
            for name, tensor in kept.items():
                mine = self.tensors[kind].get(name)
                if mine is not None and mine.numel() != tensor.numel():
                    raise ValueError(
                        f"{kind} of {name!r} with {tensor.numel()} elements (expected "
                        f"{mine.numel()}); load the state of the same model"
                    )
        for kind, kept in tensors.items():
            for name, tensor in kept.items():
                mine = self.tensors[kind].get(name)
                if mine is None:
                    self.tensors[kind][name] = tensor.detach().clone().reshape(-1)
                else:
                    mine.copy_(tensor)
