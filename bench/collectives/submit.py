"""What it costs the thread that submits an all-reduce, per tensor: Python against gloo, and C++."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench import job, turns
from bench.collectives.peers import ENGINES, WHERE
from bench.machine import ROOT
from bench.record import Run
from bench.tables import contest

CELLS = ("shm", "tcp", "cpp")
OURS = ("aiacc",)
PEERS = ("gloo",)
TITLES = {"aiacc": "aiacc", "gloo": "torch gloo", "aiacc_cpp": "aiacc, from C++"}
_TENSORS = 400
_JOBS = 3
_BINARY = ROOT / "build" / "dev" / "bench" / "micro" / "submit_bench"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """A sample is a call's share of the calls of one rank for all tensors."""
    if cell == "cpp":
        return _of_cpp(rounds or 200)
    task = {"ranks": 2, "rounds": rounds or 20}
    variables = {"AIACC_ENGINE": ENGINES[cell]}
    start = partial(job.run, "bench.collectives.submit:rank", task, variables=variables)
    found = turns.gathered(turns.alternate([start], _JOBS), turns.of_callers)
    shares = {
        name: [[round(value / _TENSORS, 12) for value in one] for one in jobs]
        for name, jobs in found["samples"].items()
    }
    title = f"submit from Python, per tensor of 1 KB; {WHERE[cell]}"
    return {"title": title, "unit": "s", "samples": shares}


def _of_cpp(rounds: int) -> dict[str, Any]:
    if not _BINARY.exists():
        raise ValueError(f"{_BINARY} is not there; cmake --build --preset dev")
    command = [str(_BINARY), str(rounds)]
    starts = [partial(subprocess.check_output, command, text=True, timeout=120)]
    jobs = [json.loads(printed)["samples_us"] for printed in turns.alternate(starts, _JOBS)]
    samples = {"aiacc_cpp": [[round(value / 1e6, 12) for value in one] for one in jobs]}
    return {"title": "submit from C++, per tensor of 1 KB; TCP", "unit": "s", "samples": samples}


def rank(task: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """The asynchronous calls alone."""
    import torch
    import torch.distributed as dist

    import aiacc.torch as hvd
    from bench.collectives.gloo import beside_aiacc, wait

    with beside_aiacc(task) as gloo:
        data = gloo.tensors([(f"submit{index}", (256,)) for index in range(_TENSORS)])
        pairs = list(zip(data.names, data.tensors, strict=True))
        start, average = hvd.allreduce_async_, hvd.Average
        begun: list[Any] = []

        def ours() -> None:
            for name, tensor in pairs:
                begun.append(start(tensor, name=name, op=average))

        def finish_ours() -> None:
            for handle in begun:
                hvd.synchronize(handle)
            begun.clear()

        def theirs() -> None:
            for tensor in data.tensors:
                begun.append(dist.all_reduce(tensor, async_op=True))

        def finish_theirs() -> None:
            for work in begun:
                wait(work)
            begun.clear()
            torch._foreach_div_(data.tensors, float(data.size))

        contenders = [
            turns.Contender("aiacc", ours, data.fill, finish_ours, data.check_average),
            turns.Contender("gloo", theirs, data.fill, finish_theirs, data.check_average),
        ]
        return turns.take_turns(contenders, task["rounds"], gloo.align)


def tables(runs: Sequence[Run]) -> str:
    """All contenders."""
    return contest(runs, TITLES, PEERS, OURS)
