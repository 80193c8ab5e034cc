"""What ranks do in the jobs of `bench.collectives.calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from bench.collectives import training
from bench.collectives.gloo import Gloo, beside_aiacc, wait
from bench.collectives.tensors import Tensors
from bench.shapes import resnet50
from bench.turns import Contender, take_turns

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
    theirs = gloo.averages(data, ("each", "coalesced", "flat", "buckets"))
    return [one_by_one(hvd, data, "aiacc"), *theirs]


def _small(gloo: Gloo, hvd: Any) -> list[Contender]:
    """Without gloo's calls one by one: their thread switches leave cold caches to all others."""
    data = gloo.tensors(_SMALL)
    return [one_by_one(hvd, data, "aiacc"), *gloo.averages(data, ("coalesced", "flat"))]


def _grouped(gloo: Gloo, hvd: Any) -> list[Contender]:
    data = gloo.tensors(_GROUPED)

    def run() -> None:
        hvd.grouped_allreduce_(data.tensors, name="grouped")

    ours = Contender("aiacc", run, data.fill, check=data.check_average)
    return [ours, *gloo.averages(data, ("coalesced", "flat"))]


def _alltoall(gloo: Gloo, hvd: Any) -> list[Contender]:
    given, pattern = _rows(gloo)
    flat, output = given.reshape(-1), torch.empty(given.numel())
    expected = torch.cat([pattern[gloo.rank] * (other + 1) for other in range(gloo.size)])

    def theirs(group: Any) -> torch.Tensor:
        dist.all_to_all_single(output, flat, group=group)
        return output

    return _returning(gloo, expected, lambda: hvd.alltoall(flat, name="alltoall"), theirs)


def _reducescatter(gloo: Gloo, hvd: Any) -> list[Contender]:
    given, pattern = _rows(gloo)
    output = torch.empty(pattern.shape[1])
    expected = pattern[gloo.rank] * (gloo.size * (gloo.size + 1) / 2)

    def ours() -> torch.Tensor:
        found: torch.Tensor = hvd.reducescatter(given, name="reducescatter", op=hvd.Sum)[0]
        return found

    def theirs(group: Any) -> torch.Tensor:
        dist.reduce_scatter_tensor(output, given.reshape(-1), group=group)
        return output

    return _returning(gloo, expected, ours, theirs)


def _rows(gloo: Gloo) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each rank: what this rank gives, and over what factor of the rank."""
    part = _ELEMENTS // gloo.size
    pattern = torch.arange(part * gloo.size).reshape(gloo.size, part).float() % 1021
    return pattern * (gloo.rank + 1), pattern


def _returning(
    gloo: Gloo,
    expected: torch.Tensor,
    ours: Callable[[], torch.Tensor],
    theirs: Callable[[Any], torch.Tensor],
) -> list[Contender]:
    """Contenders whose calls return what is to be checked."""
    seen: list[torch.Tensor] = []

    def contender(name: str, call: Callable[..., torch.Tensor], *given: Any) -> Contender:
        def run() -> None:
            seen[:] = [call(*given)]

        def check() -> None:
            assert torch.equal(seen[0], expected), f"{name}: wrong elements"

        return Contender(name, run, check=check)

    return [
        contender("aiacc", ours),
        *(contender(f"gloo_each_{n}", theirs, group) for n, group in gloo.groups.items()),
    ]


def _process_set(gloo: Gloo, hvd: Any) -> list[Contender]:
    members = list(range(gloo.size - 1))
    data = Tensors([("process_set", (_ELEMENTS,))], gloo.rank, len(members))
    tensor, few, group = data.tensors[0], hvd.add_process_set(members), dist.new_group(members)

    def ours() -> None:
        hvd.allreduce_(tensor, name="process_set", op=hvd.Sum, process_set=few)

    def theirs() -> None:
        dist.all_reduce(tensor, group=group)

    if gloo.rank not in members:  # it only keeps step with the others
        return [Contender(name, lambda: None) for name in ("aiacc", "gloo_each_1")]
    return [
        Contender(name, call, data.fill, check=lambda: data.check_repeated_sum(1))
        for name, call in (("aiacc", ours), ("gloo_each_1", theirs))
    ]


def _submit(gloo: Gloo, hvd: Any) -> list[Contender]:
    """The asynchronous calls alone."""
    data = gloo.tensors(_SMALL)
    begun: list[Any] = []

    def contender(
        name: str, start: Callable[..., object], end: Callable[[Any], object], **options: Any
    ) -> Contender:
        def run() -> None:
            for key, tensor in zip(data.names, data.tensors, strict=True):
                begun.append(start(tensor, name=key, **options))

        def finish() -> None:
            for one in begun:
                end(one)
            begun.clear()

        return Contender(name, run, data.fill, finish)

    def theirs(tensor: torch.Tensor, name: str) -> object:
        return dist.all_reduce(tensor, async_op=True)

    return [
        contender("aiacc", hvd.allreduce_async_, hvd.synchronize, op=hvd.Average),
        contender("gloo_each_1", theirs, wait),
    ]


_WORKS: dict[str, Callable[[Gloo, Any], list[Contender]]] = {
    "gradients": _gradients,
    "small": _small,
    "grouped": _grouped,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "process_set": _process_set,
    "submit": _submit,
}
