"""A training step whose backward pass is free: aiacc's optimizer, DDP over gloo, and Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.collectives import peers
from bench.record import Run
from bench.tables import contest, fastest

_WORKS = {
    "float32": "training step, ResNet-50's shapes, free backward",
    "16bit": "the same step, gradients as 16 bits on their way (DDP: fp16_compress_hook)",
}
CELLS = ("float32:shm", "float32:tcp", "16bit:tcp", "float32:shm:4", "float32:shm:8")
_BUCKET_MIB = (5, 10, 25, 50)
OURS = ("aiacc", "aiacc_groups", "aiacc_view", "aiacc_fp16")
TITLES = {
    "aiacc": "aiacc",
    "aiacc_groups": "aiacc, 8 groups",
    "aiacc_view": "aiacc, gradient_as_bucket_view",
    "aiacc_fp16": "aiacc, float16",
    **{
        f"ddp_{mib}_{contexts}{view and '_view'}{plain and '_fp32'}": f"DDP/gloo, buckets of {mib}"
        f" MiB{', 4 contexts' if contexts == 4 else ''}{view and f', {view}'}{plain}"
        for plain in ("", ", float32")
        for view in ("", "gradient_as_bucket_view")
        for mib in _BUCKET_MIB
        for contexts in (1, 4)
    },
    **peers.HOROVOD,
    "none": "no communication",
}
PEERS = tuple(key for key in TITLES if key.startswith(("ddp", "horovod")))
_AS_SHIPPED = "ddp_25_1"
_JOBS = 3
_RANK = "bench.collectives.training:rank"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs of aiacc beside gloo, and of Horovod, in turn."""
    work, way, *more = cell.split(":")
    ranks = int(more[0]) if more else 2
    task = {
        "work": "step",
        "compressed": work == "16bit",
        # More ranks have no memory for more models.
        "bucket_mib": _BUCKET_MIB if ranks == 2 else [25],
        "ranks": ranks,
        "rounds": rounds or (10 if ranks == 2 else 5),
    }
    horovod = "bench.collectives.work:horovod" if work == "float32" and ranks == 2 else ""
    found = peers.measured(_RANK, task, way, _JOBS, horovod)
    found["absent"] += ["more", "ddp"] if more else []
    return {"title": f"{_WORKS[work]}; {peers.where(way, ranks, found['samples'])}", **found}


def tables(runs: Sequence[Run]) -> str:
    """Ours; of DDP's settings those as shipped, and the fastest of each cell, and of Horovod's."""
    shown = {_AS_SHIPPED, *(fastest(run, PEERS) for run in runs)}
    shown |= {fastest(run, tuple(peers.HOROVOD)) for run in runs}
    titles = {
        key: title
        for key, title in TITLES.items()
        if key in shown or not key.startswith(("ddp", "horovod"))
    }
    return contest(runs, titles, PEERS, OURS) + peers.absent(runs)
