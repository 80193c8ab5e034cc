"""Groups, all-to-all, reduce-scatter and process sets: aiacc and gloo, side by side."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.collectives.measure import Contender
from bench.collectives.peers import Gloo, coalesced
from bench.collectives.rows import GROUPED_BYTES, GROUPED_TENSORS
from bench.collectives.tensors import Tensors

#: Elements that every rank has in the other rows: 4 MB.
_ELEMENTS = 1 << 20


def contenders(key: str, with_aiacc: bool, gloo: Gloo, rank: int, size: int) -> list[Contender]:
    """Everybody who takes part in the row ``key``, aiacc first."""
    make = {
        "grouped": _grouped,
        "alltoall": _alltoall,
        "reducescatter": _reducescatter,
        "process_set": _process_set,
    }[key]
    return make(with_aiacc, gloo, rank, size)


def _grouped(with_aiacc: bool, gloo: Gloo, rank: int, size: int) -> list[Contender]:
    shapes = [(f"grouped{index}", (GROUPED_BYTES // 4,)) for index in range(GROUPED_TENSORS)]
    data = Tensors(shapes, rank, size)
    ours = []
    if with_aiacc:
        import aiacc.torch as hvd

        def run() -> None:
            hvd.grouped_allreduce_(data.tensors, name="grouped")

        ours = [Contender("aiacc", run, data.fill, check=data.check_average)]
    return ours + coalesced(gloo, data)


def _alltoall(with_aiacc: bool, gloo: Gloo, rank: int, size: int) -> list[Contender]:
    del gloo
    part = _ELEMENTS // size
    pattern = torch.arange(part * size).reshape(size, part).float() % 1021
    given = (pattern * (rank + 1)).reshape(-1)
    expected = torch.cat([pattern[rank] * (other + 1) for other in range(size)])
    output = torch.empty(part * size)
    ours = []
    if with_aiacc:
        import aiacc.torch as hvd

        ours = [_checked("aiacc", lambda: hvd.alltoall(given, name="alltoall"), expected)]

    def theirs() -> torch.Tensor:
        dist.all_to_all_single(output, given)
        return output

    return [*ours, _checked("gloo", theirs, expected)]


def _reducescatter(with_aiacc: bool, gloo: Gloo, rank: int, size: int) -> list[Contender]:
    del gloo
    part = _ELEMENTS // size
    pattern = torch.arange(part * size).reshape(size, part).float() % 1021
    given = pattern * (rank + 1)
    expected = pattern[rank] * (size * (size + 1) / 2)
    output = torch.empty(part)
    ours = []
    if with_aiacc:
        import aiacc.torch as hvd

        def run() -> torch.Tensor:
            return hvd.reducescatter(given, name="reducescatter", op=hvd.Sum)[0]

        ours = [_checked("aiacc", run, expected)]

    def theirs() -> torch.Tensor:
        dist.reduce_scatter_tensor(output, given.reshape(-1))
        return output

    return [*ours, _checked("gloo", theirs, expected)]


def _process_set(with_aiacc: bool, gloo: Gloo, rank: int, size: int) -> list[Contender]:
    del gloo
    members = list(range(size - 1))
    data = Tensors([("process_set", (_ELEMENTS,))], rank, len(members))
    tensor = data.tensors[0]
    group = dist.new_group(members)
    ours = []
    if with_aiacc:
        import aiacc.torch as hvd

        few = hvd.add_process_set(members)

        def run() -> None:
            hvd.allreduce_(tensor, name="process_set", op=hvd.Sum, process_set=few)

        ours = [("aiacc", run)]

    def theirs() -> None:
        dist.all_reduce(tensor, group=group)

    def check() -> None:
        data.check_repeated_sum(1)

    if rank not in members:  # it only keeps step with the others
        return [Contender(name, lambda: None) for name, _ in [*ours, ("gloo", theirs)]]
    return [
        Contender(name, call, data.fill, check=check) for name, call in [*ours, ("gloo", theirs)]
    ]


def _checked(name: str, run: Callable[[], torch.Tensor], expected: torch.Tensor) -> Contender:
    """A contender whose call returns what is to be checked."""
    seen: list[torch.Tensor] = []

    def call() -> None:
        seen[:] = [run()]

    def check() -> None:
        if not torch.equal(seen[0], expected):
            wrong = int((seen[0] != expected).sum())
            raise AssertionError(f"{name}: {wrong} of {expected.numel()} elements are wrong")

    return Contender(name, call, check=check)
