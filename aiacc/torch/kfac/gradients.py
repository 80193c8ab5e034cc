"""Preconditioned gradients: of the layers of this rank, and from those that send theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from aiacc.kfac.distribution import Distribution
from aiacc.kfac.precondition import clip_factor
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.kfac.solvers import Solver
from aiacc.torch.mpi_ops import allgather_async, synchronize


class Preconditioning:
    """Replaces the gradients of layers by G^-1 gradient A^-1."""

    def __init__(
        self,
        name: str,
        layers: Sequence[FactoredModule],
        plan: Distribution,
        ranks: Ranks,
        solver: Solver,
    ) -> None:
        """Of the layers in ``plan``. Collective: connects senders and receivers."""
        self._name, self._ranks, self._solver = name, ranks, solver
        self._layers = list(layers)
        self._mine = [
            layer
            for layer, work in zip(layers, plan.layers, strict=True)
            if ranks.index in work.preconditioned_by
        ]
        #: Layers by who sends them among the ranks that this one exchanges gradients with.
        self._of: dict[int, list[FactoredModule]] = {}
        members: set[int] = set()
        for layer, work in zip(layers, plan.layers, strict=True):
            for sender, receivers in work.sends:
                if ranks.index == sender or ranks.index in receivers:
                    self._of.setdefault(sender, []).append(layer)
                    members |= {sender, *receivers}
        for rank in members:
            self._of.setdefault(rank, [])
        self._process_set = ranks.among(sorted(members)) if members else None

    @property
    def nbytes(self) -> int:
        """That this rank sends in each step."""
        mine = self._of.get(self._ranks.index, [])
        return sum(layer.weight.numel() * layer.a.dtype.itemsize for layer in mine)

    def run(
        self, damping: float, kl_clip: float | None, lr_of: Callable[[torch.Tensor], float]
    ) -> None:
        """Precondition all gradients.

        Collective: every rank, if some send gradients. Blocks: then, until they are there.

        Args:
            damping: Of A (x) G, for a solver whose results do not contain it.
            kl_clip: See `clip_factor`; None: no clipping.
            lr_of: Learning rate of a parameter.

        Raises:
            CollectiveError: An operation failed.
        """
        before = {layer.name: layer.gradient() for layer in self._layers}
        after: dict[str, torch.Tensor] = {}
        for layer in self._mine:
            gradient = before[layer.name]
            if gradient is None:
                continue
            a, g = layer.a.inverse, layer.g.inverse
            if a is not None and g is not None:
                gradient = self._solver.precondition(gradient, a, g, damping)
            after[layer.name] = gradient
        if self._process_set is not None:
            self._exchange(after)
        changed = [layer for layer in self._layers if before[layer.name] is not None]
        if not changed:
            return
        if kl_clip is not None:
            factor = _clip(changed, before, after, kl_clip, lr_of)
            for matrix in after.values():
                matrix *= factor
        for layer in changed:
            layer.put_gradient(after[layer.name])

    def _exchange(self, after: dict[str, torch.Tensor]) -> None:
        """Send what is this rank's, and receive the rest; a layer without gradient sends zeros."""
        assert self._process_set is not None
        mine = self._of[self._ranks.index]
        # All ranks send the same dtype, whatever that of their layers.
        widest = max((layer.a.dtype for layer in self._layers), key=lambda dtype: dtype.itemsize)
        like = self._layers[0].weight
        parts = [like.new_empty(0, dtype=widest)]
        for layer in mine:
            part = after.get(layer.name)
            parts.append(like.new_zeros(_size(layer)) if part is None else part.reshape(-1))
        flat = torch.cat([part.to(widest) for part in parts])
        handle = allgather_async(flat, f"{self._name}.gradients", self._process_set)
        result: torch.Tensor = synchronize(handle)
        begin = 0
        for rank in sorted(self._of):
            for layer in self._of[rank]:
                end = begin + _size(layer)
                after[layer.name] = result[begin:end].view(layer.shape).to(layer.a.dtype)
                begin = end


def _size(layer: FactoredModule) -> int:
    size = 1
    for number in layer.shape:
        size *= number
    return size


def _clip(
    layers: Sequence[FactoredModule],
    before: dict[str, torch.Tensor | None],
    after: dict[str, torch.Tensor],
    kl_clip: float,
    lr_of: Callable[[torch.Tensor], float],
) -> torch.Tensor:
    # Groups may have learning rates of their own: each counts in its layers' gradients.
    gradients = [
        gradient * lr_of(layer.weight) ** 2
        for layer in layers
        if (gradient := before[layer.name]) is not None
    ]
    return clip_factor([after[layer.name] for layer in layers], gradients, 1.0, kl_clip)
