"""The ranks of a job that has aiacc and torch's gloo, and gloo's ways to average tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from bench.collectives.tensors import Tensors
from bench.turns import Contender

_LIMIT = timedelta(seconds=600)
_INTERFACES = "GLOO_SOCKET_IFNAME"

Group = dist.ProcessGroup | None


class Gloo:
    """Gloo groups over all ranks: as shipped, and with four contexts, which are connections."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        """Connect through a file of the job's folder. Collective. Blocks."""
        self.rank: int = task["rank"]
        self.size: int = task["ranks"]
        os.environ.pop(_INTERFACES, None)
        store = f"file://{task['folder']}/gloo"
        dist.init_process_group("gloo", store, _LIMIT, rank=self.rank, world_size=self.size)
        # gloo reads the variable when a group is made: one context per interface named, in turn.
        os.environ[_INTERFACES] = "lo,lo,lo,lo"
        multi = dist.new_group(backend="gloo", timeout=_LIMIT)
        os.environ.pop(_INTERFACES)
        assert isinstance(multi, dist.ProcessGroup)
        #: By the number of contexts; an operation by itself uses one.
        self.groups: dict[int, Group] = {1: dist.group.WORLD, 4: multi}

    def align(self) -> None:
        """Barrier over all ranks. Collective. Blocks."""
        dist.barrier()

    def tensors(self, shapes: Sequence[Any], largest_sum: int = 0) -> Tensors:
        """Tensors of this rank."""
        return Tensors(shapes, self.rank, self.size, largest_sum)

    def averages(self, data: Tensors, ways: Sequence[str]) -> list[Contender]:
        """Averages of all tensors in so many of gloo's ways."""
        return [
            Contender(
                f"gloo_{name}",
                make(data.tensors, self.groups[contexts], self.size),
                data.fill,
                check=data.check_average,
            )
            for name, (make, contexts) in _WAYS.items()
            if name.partition("_")[0] in ways
        ]

    def summed(self, tensor: torch.Tensor, pieces: int) -> Callable[[], None]:
        """A sum of a tensor in place; in several pieces it uses all four contexts."""
        parts, group = tensor.chunk(pieces), self.groups[1 if pieces == 1 else 4]

        def run() -> None:
            for work in [dist.all_reduce(part, group=group, async_op=True) for part in parts]:
                wait(work)

        return run


@contextmanager
def beside_aiacc(task: Mapping[str, Any]) -> Iterator[Gloo]:
    """Both in this process. Collective. Blocks."""
    import aiacc.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    gloo = Gloo(task)
    yield gloo
    gloo.align()
    dist.destroy_process_group()
    hvd.shutdown()


def _each(tensors: list[torch.Tensor], group: Group, size: int) -> Callable[[], None]:
    def run() -> None:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work, tensor in zip(works, tensors, strict=True):
            wait(work)
            tensor.div_(size)

    return run


def _coalesced(tensors: list[torch.Tensor], group: Group, size: int) -> Callable[[], None]:
    warnings.filterwarnings("ignore", message=".*all_reduce_coalesced", category=FutureWarning)

    def run() -> None:
        dist.all_reduce_coalesced(tensors, group=group)
        torch._foreach_div_(tensors, float(size))

    return run


def _flat(
    tensors: list[torch.Tensor], group: Group, size: int, buckets: int = 1
) -> Callable[[], None]:
    """What DDP does without autograd: copy into buckets, divide, all-reduce each, copy back."""
    most = sum(tensor.nbytes for tensor in tensors) / buckets
    members: list[list[torch.Tensor]] = [[]]
    for tensor in tensors:
        members[-1].append(tensor)
        if sum(one.nbytes for one in members[-1]) >= most:
            members.append([])
    members = [bucket for bucket in members if bucket]
    flats = [torch.empty(sum(one.numel() for one in bucket)) for bucket in members]
    views = [
        [
            part.view(one.shape)
            for part, one in zip(
                torch.split_with_sizes(flat, [one.numel() for one in bucket]), bucket, strict=True
            )
        ]
        for flat, bucket in zip(flats, members, strict=True)
    ]

    def run() -> None:
        works = []
        for flat, parts, bucket in zip(flats, views, members, strict=True):
            torch._foreach_copy_(parts, bucket)
            flat.div_(size)
            works.append(dist.all_reduce(flat, group=group, async_op=True))
        for work, parts, bucket in zip(works, views, members, strict=True):
            wait(work)
            torch._foreach_copy_(bucket, parts)

    return run


def wait(work: dist.Work | None) -> None:
    """Until it is done."""
    assert work is not None  # None only for ranks outside the group
    work.wait()


_Way = Callable[[list[torch.Tensor], Group, int], Callable[[], None]]
#: And the contexts of each.
_WAYS: dict[str, tuple[_Way, int]] = {
    "each_1": (_each, 1),
    "each_4": (_each, 4),
    "coalesced_1": (_coalesced, 1),
    "flat_1": (_flat, 1),
    "cut_4": (partial(_flat, buckets=4), 4),
    "cut_8": (partial(_flat, buckets=8), 4),
    "buckets_1": (partial(_flat, buckets=4), 1),
}
