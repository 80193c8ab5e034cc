"""torch.distributed over gloo: the reference that aiacc is compared with."""

import os
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.collectives.measure import Contender
from bench.collectives.tensors import Tensors

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_INTERFACES = "GLOO_SOCKET_IFNAME"


class Gloo:
    """Two gloo groups over all ranks: as shipped, and with four contexts (sockets per peer)."""

    def __init__(self, rank: int, size: int, store: Path, timeout_s: float) -> None:
        """Connect through the file ``store``, which no job used before. Collective. Blocks."""
        # gloo reads the variable when a group is made: one context per interface named, in turn.
        os.environ.pop(_INTERFACES, None)
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", f"file://{store}", limit, rank=rank, world_size=size)
        os.environ[_INTERFACES] = "lo,lo,lo,lo"
        multi = dist.new_group(backend="gloo", timeout=limit)
        os.environ.pop(_INTERFACES)
        assert isinstance(multi, dist.ProcessGroup)
        self.plain: dist.ProcessGroup | None = dist.group.WORLD
        self.multi = multi
        self.size = size
        self.folder = store.parent

    def close(self) -> None:
        """Disconnect."""
        dist.destroy_process_group()

    def align(self) -> None:
        """Barrier over all ranks. Collective. Blocks."""
        dist.barrier()


def one_by_one(gloo: Gloo, data: Tensors, backward: bool) -> list[Contender]:
    """Each tensor all-reduced asynchronously, then waited for and divided; both groups."""

    def contender(name: str, group: dist.ProcessGroup | None) -> Contender:
        tensors = data.tensors[::-1] if backward else data.tensors
        divisor = float(gloo.size)

        def run() -> None:
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
            for work, tensor in zip(works, tensors, strict=True):
                _wait(work)
                tensor.div_(divisor)

        return Contender(name, run, data.fill, check=data.check_average)

    return [contender("gloo", gloo.plain), contender("gloo_multi", gloo.multi)]


def coalesced(gloo: Gloo, data: Tensors) -> list[Contender]:
    """All tensors in torch's own coalesced call, and copied by hand into one tensor."""
    flat = torch.empty(sum(tensor.numel() for tensor in data.tensors))
    parts = _parts(flat, data.tensors)
    divisor = float(gloo.size)

    def call() -> None:
        dist.all_reduce_coalesced(data.tensors)
        torch._foreach_div_(data.tensors, divisor)

    def by_hand() -> None:
        torch._foreach_copy_(parts, data.tensors)
        dist.all_reduce(flat)
        flat.div_(divisor)
        torch._foreach_copy_(data.tensors, parts)

    warnings.filterwarnings("ignore", message=".*all_reduce_coalesced", category=FutureWarning)
    return [
        Contender("gloo_coalesced", call, data.fill, check=data.check_average),
        Contender("gloo_flat", by_hand, data.fill, check=data.check_average),
    ]


def buckets(gloo: Gloo, data: Tensors) -> Contender:
    """What DDP does without autograd: copy into buckets, divide, all-reduce each, copy back."""
    groups: list[list[torch.Tensor]] = [[]]
    limit = _FIRST_BUCKET_BYTES
    for tensor in reversed(data.tensors):
        groups[-1].append(tensor)
        if sum(member.nbytes for member in groups[-1]) >= limit:
            groups.append([])
            limit = _BUCKET_BYTES
    groups = [group for group in groups if group]
    flats = [torch.empty(sum(tensor.numel() for tensor in group)) for group in groups]
    parts = [_parts(flat, group) for flat, group in zip(flats, groups, strict=True)]
    divisor = float(gloo.size)

    def run() -> None:
        works = []
        for flat, views, group in zip(flats, parts, groups, strict=True):
            torch._foreach_copy_(views, group)
            flat.div_(divisor)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, views, group in zip(works, parts, groups, strict=True):
            _wait(work)
            torch._foreach_copy_(group, views)

    return Contender("gloo_buckets", run, data.fill, check=data.check_average)


def blocking(gloo: Gloo, data: Tensors, calls: int) -> list[Contender]:
    """One blocking sum in place, repeated; both groups."""
    tensor = data.tensors[0]

    def contender(name: str, group: dist.ProcessGroup | None) -> Contender:
        return Contender(
            name,
            lambda: _discard(dist.all_reduce(tensor, group=group)),
            data.fill,
            check=lambda: data.check_repeated_sum(calls),
        )

    return [contender("gloo", gloo.plain), contender("gloo_multi", gloo.multi)]


def submit(gloo: Gloo, data: Tensors) -> Contender:
    """The asynchronous calls alone."""
    works: list[dist.Work | None] = []
    divisor = float(gloo.size)

    def run() -> None:
        for tensor in data.tensors:
            works.append(dist.all_reduce(tensor, async_op=True))

    def finish() -> None:
        for work in works:
            _wait(work)
        works.clear()
        torch._foreach_div_(data.tensors, divisor)

    return Contender("gloo", run, data.fill, finish, data.check_average)


def _parts(flat: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of ``flat`` shaped like ``tensors``, one after another."""
    parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _wait(work: dist.Work | None) -> None:
    assert work is not None  # None only for ranks outside the group
    work.wait()


def _discard(_: object) -> None:
    """Drop the value of an expression."""
