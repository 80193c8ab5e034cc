"""When factors and gradients are ready, in some steps, for the plan that fuses them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from aiacc.collectives.objects import maxima
from aiacc.torch.kfac.fusion import Moment
from aiacc.torch.kfac.ranks import Ranks

#: Steps that build factors until there is a plan. The first one does not count: it allocates.
RECORDED = 4


class Recording:
    """Notes moments of the host, from the first input of a step on. It waits for nothing."""

    def __init__(self, named_gradients: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Hook these parameters, too."""
        self._gradients = [(name, p) for name, p in named_gradients if p.requires_grad]
        self._began: float | None = None
        self._now: dict[str, float] = {}
        self._steps: list[dict[str, float]] = []
        self._hooks: list[RemovableHandle] = []
        for name, parameter in self._gradients:
            register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._hooks.append(register(lambda _, name=name: self.mark(name)))

    @property
    def complete(self) -> bool:
        """Whether enough steps were recorded."""
        return len(self._steps) >= RECORDED

    def begin(self) -> None:
        """A layer is about to be used; the first one of a step begins it."""
        if self._began is None:
            self._began = time.perf_counter()

    def mark(self, name: str) -> None:
        """Something is ready."""
        if self._began is not None:
            self._now[name] = time.perf_counter() - self._began

    def step_done(self) -> None:
        """The step has built factors and ends."""
        self._steps.append(self._now)
        self._began, self._now = None, {}

    def drop(self) -> None:
        """The step has built none."""
        self._began, self._now = None, {}

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def moments(
        self, factors: Sequence[tuple[str, int]], ranks: Ranks
    ) -> tuple[list[Moment], list[Moment]]:
        """Of factors, with these bytes, and of gradients: medians, on the slowest rank.

        Collective: every rank. Blocks.
        """
        gradients = [(name, p.numel() * p.element_size()) for name, p in self._gradients]
        steps = self._steps[1:]
        mine = [
            median([step[name] for step in steps if name in step] or [0.0])
            for name, _ in [*factors, *gradients]
        ]
        slowest = maxima(mine, f"{ranks.name}.moments", ranks.process_set)
        found = [
            Moment(name, nbytes, ready_s if ready_s > 0 else max(slowest))
            for (name, nbytes), ready_s in zip([*factors, *gradients], slowest, strict=True)
        ]
        return found[: len(factors)], found[len(factors) :]
