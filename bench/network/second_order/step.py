"""Ranks of `bench.network.second_order.row`: ways to distribute K-FAC take turns.

The device is modelled: it sleeps through passes, factors and inversions, and what it would do to
memory besides, packing above all, costs nothing. What travels does so by `aiacc.torch.kfac`. In
some steps nothing does: they have the threads, hooks and sleeps of the others, and no
communication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

import aiacc.torch as hvd
from aiacc.kfac.distribution import Distribution, of_owners
from aiacc.torch.kfac import buckets, inverses, solvers
from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.fusion import Fused
from aiacc.torch.kfac.inverses import InverseStage
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.ranks import Ranks

_OPERATIONS = (
    *("allgather_async", "allreduce_", "allreduce_async_", "broadcast_async_"),
    *("reducescatter_async", "synchronize"),
)


class Clock:
    """Of the device: what it does takes its time from when it could begin."""

    def __init__(self) -> None:
        """Begin now."""
        self.at = time.monotonic()

    def until(self, moment: float) -> None:
        """Sleep until then."""
        left = moment - time.monotonic()
        if left > 0:
            time.sleep(left)

    def take(self, seconds: float) -> None:
        """Compute for so long."""
        self.at += seconds
        self.until(self.at)


class Stage(InverseStage):
    """Inverts by sleeping."""

    seconds: dict[str, float]
    late = False
    clock: Clock

    def _invert(self, factors: list[Factor], dampings: dict[str, torch.Tensor]) -> None:
        del dampings
        self.clock.take(sum(self.seconds[factor.name] for factor in factors))
        for factor in factors:
            factor.inverse = factor.mean

    def _parts(self) -> list[list[str]]:
        parts = super()._parts()
        if self.late:
            everything = [factor.name for factor, _ in self._mine]
            parts = [everything if part else part for part in parts]
        return parts

    def begin(self) -> None:
        """All of this rank's factors are to be inverted."""
        self.clock = Clock()


class Contender:
    """One way to distribute a step."""

    def __init__(self, task: Any, job: Any, ranks: Ranks) -> None:
        """Lay out what travels. Collective."""
        self._task, self._job = task, job
        layers = [
            FactoredModule(name, torch.nn.Linear(a_dim, g_dim, bias=False))
            for name, a_dim, g_dim in job["layers"]
        ]
        self._factors = {f.name: f for layer in layers for f in layer.factors}
        plan = _plan(task, layers, ranks.size)
        name = f"bench.{task['name']}"
        self._execution = Execution(name, layers, plan, ranks)
        fused = [
            Fused(op, tuple(names)) for op, names in task["buckets"] if names[0] in self._factors
        ]
        self._execution.fuse(fused)
        self._stage = Stage(name, layers, plan, ranks, task["together"])
        self._stage.seconds = dict(zip(job["inversion_names"], job["inversion_s"], strict=True))
        self._stage.late = task["late"]
        rest = [names for _, names in task["buckets"] if names[0] not in self._factors]
        self._gradients = [_Gradients(f"{name}.{n}", one, job) for n, one in enumerate(rest)]
        self._bucket_of = {g: bucket for bucket in self._gradients for g in bucket.names}
        self._ranks = ranks

    def step(self, *, sent: bool = True) -> float:
        """Seconds of a step; is anything sent?"""
        for bucket in self._gradients:
            bucket.begin(sent=sent)
        hvd.barrier()
        clock = Clock()
        began = clock.at
        for name, ready_s in self._task["moments"]:
            clock.until(began + ready_s)
            self._ready(name)
        clock.until(began + self._task["passes_s"])
        for bucket in self._gradients:
            bucket.finish()
        if not self._task["pipelined"]:
            clock = Clock()
            clock.take(self._job["factor_s"])
            for name in self._factors:
                self._ready(name)
        self._execution.exchange.complete()
        for factor, _, weight, _ in self._execution.exchange.finish():
            assert not sent or float(weight) == self._ranks.size
            factor.mean = torch.ones(()).expand(factor.shape)  # of no matter
        self._stage.begin()
        self._stage.run(0.1, "pi")
        return time.monotonic() - began

    def _ready(self, name: str) -> None:
        factor = self._factors.get(name)
        if factor is None:
            self._bucket_of[name].ready()
            return
        factor.total, factor.weight = torch.empty(0), torch.ones(())
        self._execution.exchange.ready(factor)


class _Gradients:
    """A bucket of gradients in flat memory."""

    def __init__(self, name: str, names: Sequence[str], job: Any) -> None:
        self._name, self.names = name, names
        self._flat = torch.zeros(sum(job["gradients"][one] for one in names))
        self._left, self._handle, self._sent = 0, 0, True

    def begin(self, *, sent: bool) -> None:
        self._left, self._sent = len(self.names), sent
        self._flat[0] = 1.0

    def ready(self) -> None:
        self._left -= 1
        if self._left == 0 and self._sent:
            self._handle = hvd.allreduce_async_(self._flat, name=self._name, op=hvd.Sum)

    def finish(self) -> None:
        if self._sent:
            hvd.synchronize(self._handle)
            assert self._flat[0] == hvd.size()


def rank(task: Any) -> dict[str, Any]:
    """Run the contenders, one after the other."""
    torch.set_num_threads(1)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    for module in (buckets, solvers):
        module.pack = module.unpack = nothing  # type: ignore[attr-defined]
    hvd.init()
    ranks = Ranks(hvd.global_process_set)
    ranks.name = "bench"
    found = {}
    for one in task["contenders"]:
        contender = Contender(one, task, ranks)
        samples = [contender.step() for _ in range(task["steps"] + 1)]
        with _unsent():
            unsent = [contender.step(sent=False) for _ in range(task["steps"])]
        found[one["name"]] = {"samples": samples[1:], "unsent": unsent}  # the first agrees on names
    hvd.shutdown()
    return found


@contextmanager
def _unsent() -> Iterator[None]:
    """Where operations of a step end as soon as they begin."""
    same: Callable[..., Any] = lambda tensor, *_, **__: tensor  # noqa: E731
    with ExitStack() as stack:
        for module in (buckets, inverses):
            names = [name for name in vars(module) if name in _OPERATIONS]
            stack.enter_context(mock.patch.multiple(module, **dict.fromkeys(names, same)))
        yield


def _plan(task: Any, layers: Sequence[FactoredModule], size: int) -> Distribution:
    """The distribution that the simulator has found, for these layers."""
    described = [layer.described for layer in layers]
    plan = of_owners(task["name"], described, size, task["owners"])
    if task["reduces"]:
        return plan
    all_get: dict[str, Any] = {"reduced_to": tuple(range(size))}
    works = [
        replace(one, a=replace(one.a, **all_get), g=replace(one.g, **all_get))
        for one in plan.layers
    ]
    return replace(plan, layers=tuple(works))
