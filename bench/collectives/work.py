"""What ranks do in the jobs of `bench.collectives.calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from bench.collectives import training
from bench.collectives.gloo import Gloo, beside_aiacc, wait
from bench.collectives.tensors import Tensors
from bench.shapes import resnet50
from bench.turns import Contender, nothing, take_turns

_SMALL = [(f"small{index}", (256,)) for index in range(400)]
_GROUPED = [(f"grouped{index}", (16 * 1024,)) for index in range(100)]
#: Elements that every rank has in exchanges: 4 MB.
_ELEMENTS = 1 << 20

Seen = dict[str, dict[str, list[float]]]


def calls(task: Mapping[str, Any]) -> Seen:
    """Aiacc and gloo in turn."""
    import aiacc.torch as hvd

    with beside_aiacc(task) as gloo:
        return take_turns(_WORKS[task["work"]](gloo, hvd), task["rounds"], gloo.align)


def horovod(task: Mapping[str, Any]) -> Seen:
    """Horovod by itself."""
    import horovod.torch as hvd  # type: ignore[import-not-found,unused-ignore]

    torch.set_num_threads(1)
    hvd.init()
    data = Tensors(resnet50()[::-1], hvd.rank(), hvd.size())
    make = training.distributed if task["work"] == "step" else one_by_one
    return take_turns([make(hvd, data, task["name"])], task["rounds"], hvd.barrier)


def one_by_one(hvd: Any, data: Tensors, name: str) -> Contender:
    """Each tensor averaged in place, asynchronously, then synchronised."""
    pairs = list(zip(data.names, data.tensors, strict=True))
    start, end, average = hvd.allreduce_async_, hvd.synchronize, hvd.Average

    def run() -> None:
        handles = [start(tensor, name=name, op=average) for name, tensor in pairs]
        for handle in handles:
            end(handle)

    return Contender(name, run, data.fill, check=data.check_average)


def _gradients(gloo: Gloo, hvd: Any) -> list[Contender]:
    data = gloo.tensors(resnet50()[::-1])
    theirs = gloo.averages(data, ("each", "coalesced", "flat", "cut", "buckets"))
    return [one_by_one(hvd, data, "aiacc"), *theirs]


def _small(gloo: Gloo, hvd: Any) -> list[Contender]:
    """Without gloo's calls one by one: their thread switches leave cold caches to all others."""
    data = gloo.tensors(_SMALL)
    return [one_by_one(hvd, data, "aiacc"), *gloo.averages(data, ("coalesced", "flat"))]


def _grouped(gloo: Gloo, hvd: Any) -> list[Contender]:
    data = gloo.tensors(_GROUPED)
    run = partial(hvd.grouped_allreduce_, data.tensors, name="grouped")
    ours = Contender("aiacc", run, data.fill, check=data.check_average)
    return [ours, *gloo.averages(data, ("coalesced", "flat", "cut"))]


def _alltoall(gloo: Gloo, hvd: Any) -> list[Contender]:
    given, pattern = _rows(gloo)
    flat, output = given.reshape(-1), torch.empty(given.numel())
    expected = torch.cat([pattern[gloo.rank] * (other + 1) for other in range(gloo.size)])

    def theirs() -> torch.Tensor:
        dist.all_to_all_single(output, flat)
        return output

    ours = partial(hvd.alltoall, flat, name="alltoall")
    return _returning(expected, {"aiacc": ours, "gloo_each_1": theirs})


def _reducescatter(gloo: Gloo, hvd: Any) -> list[Contender]:
    """Gloo's own is an all-reduce and a copy; theirs leaves the copy out."""
    given, pattern = _rows(gloo)
    work = given.clone()
    expected = pattern[gloo.rank] * (gloo.size * (gloo.size + 1) / 2)
    ours = partial(hvd.reducescatter, given, name="reducescatter", op=hvd.Sum)

    def theirs(pieces: int) -> Callable[[], torch.Tensor]:
        run = gloo.summed(work.view(-1), pieces)
        return lambda: (run(), work[gloo.rank])[1]

    calls = {"aiacc": lambda: ours()[0], "gloo_sliced_1": theirs(1), "gloo_sliced_4": theirs(4)}
    return _returning(expected, calls, lambda: work.copy_(given))


def _rows(gloo: Gloo) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each rank: what this rank gives, and over what factor of the rank."""
    part = _ELEMENTS // gloo.size
    pattern = torch.arange(part * gloo.size).reshape(gloo.size, part).float() % 1021
    return pattern * (gloo.rank + 1), pattern


def _returning(
    expected: torch.Tensor,
    calls: Mapping[str, Callable[[], torch.Tensor]],
    prepare: Callable[[], object] = nothing,
) -> list[Contender]:
    """Contenders whose calls return what is to be checked."""
    seen: list[torch.Tensor] = []

    def contender(name: str, call: Callable[[], torch.Tensor]) -> Contender:
        def run() -> None:
            seen[:] = [call()]

        def check() -> None:
            assert torch.equal(seen[0], expected), f"{name}: wrong elements"

        return Contender(name, run, prepare, check=check)

    return [contender(name, call) for name, call in calls.items()]


def _submit(gloo: Gloo, hvd: Any) -> list[Contender]:
    """The asynchronous calls alone."""
    data = gloo.tensors(_SMALL)
    begun: list[Any] = []

    def contender(name: str, start: Callable[[], Any], end: Callable[[Any], object]) -> Contender:
        def run() -> None:
            begun[:] = start()

        def finish() -> None:
            for one in begun:
                end(one)

        return Contender(name, run, data.fill, finish)

    pairs, start, average = (
        list(zip(data.names, data.tensors, strict=True)),
        hvd.allreduce_async_,
        hvd.Average,
    )
    starts: dict[str, Callable[[], Any]] = {
        "aiacc": lambda: [start(tensor, name=name, op=average) for name, tensor in pairs],
        "gloo_each_1": lambda: [dist.all_reduce(one, async_op=True) for one in data.tensors],
        "gloo_coalesced_1": lambda: [dist.all_reduce_coalesced(data.tensors, async_op=True)],
    }
    return [
        contender(name, one, hvd.synchronize if name.startswith("aiacc") else wait)
        for name, one in starts.items()
    ]


_WORKS: dict[str, Callable[[Gloo, Any], list[Contender]]] = {
    "gradients": _gradients,
    "small": _small,
    "grouped": _grouped,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "submit": _submit,
}
