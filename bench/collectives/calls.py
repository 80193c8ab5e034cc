"""Collectives of gradients and of single tensors: aiacc against gloo, and Horovod if it is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import turns
from bench.collectives import peers
from bench.record import Run
from bench.tables import contest

_WORKS = {
    "gradients": "161 gradients of ResNet-50, 97.5 MiB, averaged",
    "small": "400 tensors of 1 KB, averaged one by one",
    "grouped": "100 tensors of 64 KB as one group, averaged",
    "alltoall": "all-to-all, 4 MB on every rank",
    "reducescatter": "reduce-scatter, 4 MB on every rank",
    "submit": "submitting 400 tensors of 1 KB: the time of the caller",
}
#: A work, how ranks talk, and more ranks than two if there are.
CELLS = (
    *(f"{work}:{way}" for work in _WORKS for way in peers.ENGINES),
    *(f"{work}:shm:{ranks}" for ranks in (4, 8) for work in ("gradients", "small")),
)
OURS = ("aiacc",)
TITLES = {
    "aiacc": "aiacc",
    "gloo_each_1": "torch gloo, one by one",
    "gloo_each_4": "torch gloo, one by one, 4 contexts",
    "gloo_coalesced_1": "torch gloo, coalesced call",
    "gloo_flat_1": "torch gloo, copied into one tensor by hand",
    "gloo_cut_4": "torch gloo, copied into 4 tensors by hand, 4 contexts",
    "gloo_cut_8": "torch gloo, copied into 8 tensors by hand, 4 contexts",
    "gloo_buckets_1": "torch gloo, 25 MiB buckets by hand (4 of them)",
    "gloo_sliced_1": "torch gloo, all-reduce, a slice of it",
    "gloo_sliced_4": "torch gloo, the same cut into 4, 4 contexts",
    **peers.HOROVOD,
}
PEERS = tuple(key for key in TITLES if key not in OURS)
_JOBS = 3
_RANKS_OF = "bench.collectives.work:"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs of all contenders, in turn."""
    work, way, *more = cell.split(":")
    ranks = int(more[0]) if more else 2
    task = {"work": work, "ranks": ranks, "rounds": rounds or (10 if ranks < 4 else 5)}
    horovod = f"{_RANKS_OF}horovod" if work == "gradients" and ranks == 2 else ""
    clock = turns.of_callers if work == "submit" else turns.seconds
    found = peers.measured(f"{_RANKS_OF}calls", task, way, _JOBS, horovod, clock)
    found["absent"] += ["more"] if more and work == "gradients" else []
    return {"title": f"{_WORKS[work]}; {peers.where(way, ranks, found['samples'])}", **found}


def tables(runs: Sequence[Run]) -> str:
    """All contenders of each cell."""
    return contest(runs, TITLES, PEERS, OURS) + peers.absent(runs)
