"""CPU time of ranks that have nothing to do: aiacc, and gloo in processes without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from bench import job
from bench.collectives.peers import ENGINES
from bench.record import Run
from bench.tables import contest
from bench.turns import by_name

CELLS = ("5s",)
OURS = ("aiacc_shm", "aiacc_tcp")
PEERS = ("gloo",)
TITLES = {
    "aiacc_shm": "aiacc, shared memory",
    "aiacc_tcp": "aiacc, TCP",
    "gloo": "torch gloo",
}
_SECONDS = 5.0
_SETTLE_S = 0.5


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """A sample is the CPU time of one rank."""
    del cell

    def start(name: str) -> list[Any]:
        variables = {"AIACC_ENGINE": ENGINES.get(name.rpartition("_")[2], "")}
        task = {"name": name, "ranks": 2}
        return job.run("bench.collectives.idle:rank", task, variables=variables)

    found = by_name(TITLES, rounds or 5, start)
    return {
        "title": f"2 ranks, idle for {_SECONDS:g} s",
        "unit": "s",
        "samples": {
            name: [[rank["cpu"] for rank in ranks] for ranks in jobs]
            for name, jobs in found.items()
        },
        "rounds": max(rank["rounds"] for jobs in found.values() for rank in chain(*jobs)),
    }


def rank(task: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds, and rounds of agreement, after a first collective."""
    import torch
    import torch.distributed as dist

    if task["name"] == "gloo":
        store = f"file://{task['folder']}/gloo"
        dist.init_process_group("gloo", store, rank=task["rank"], world_size=task["ranks"])
        dist.barrier()
        return _waited(lambda: 0.0)
    import aiacc
    import aiacc.torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(1), name="before idling")
    found = _waited(lambda: float(aiacc.stats()["rounds"]))
    hvd.shutdown()
    return found


def _waited(rounds: Callable[[], float]) -> dict[str, float]:
    time.sleep(_SETTLE_S)
    cpu, before = time.process_time(), rounds()
    time.sleep(_SECONDS)
    return {"cpu": round(time.process_time() - cpu, 9), "rounds": rounds() - before}


def tables(runs: Sequence[Run]) -> str:
    """CPU time of a rank, and what aiacc has exchanged meanwhile."""
    (run,) = runs
    return f"{contest(runs, TITLES, PEERS, OURS)}\n\naiacc exchanged {run['rounds']:g} rounds."
