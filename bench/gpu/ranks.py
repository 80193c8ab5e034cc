"""Jobs whose ranks share the GPU by turns: they compare contenders, and say nothing of two GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import aiacc.torch as hvd
from aiacc.run.local import free_port
from bench import job
from bench.gpu import SOCKETS
from bench.gpu.works import here
from bench.turns import Contender, Spans, gathered, take_turns

_ROUNDS, _WARM_UP = 20, 5


def run(work: str, ranks: int, rounds: int | None, variables: Mapping[str, str]) -> Any:
    """Samples of each contender of one job of ``ranks``."""
    common = {
        # torch's communicators and aiacc's are in one process: see docs/gpu.md.
        "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **(SOCKETS if ranks > 1 else {}),
    }
    task = {"rounds": rounds or _ROUNDS}
    found = job.run(work, task, ranks=ranks, variables={**common, **variables}, timeout_s=120)
    return gathered([found])["samples"]


def kept(title: str, samples: Any) -> dict[str, Any]:
    """What is kept of a cell."""
    return {"title": title, "unit": "s", "samples": samples, "machine": here()}


def begin() -> None:
    """Join the job, on GPU 0."""
    if "NCCL_NET" in os.environ:
        os.environ["NCCL_HOSTID"] = f"host{os.environ['AIACC_RANK']}"
    torch.cuda.set_device(0)
    hvd.init()


def in_turn(contenders: Sequence[Contender], rounds: int) -> dict[str, Spans]:
    """Everybody in turn; a call begins and ends with a GPU that has nothing to do."""

    def finished(first: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            first()
            torch.cuda.synchronize()

        return call

    made = [
        replace(one, run=finished(one.run), prepare=finished(one.prepare)) for one in contenders
    ]
    return dict(take_turns(made, rounds, hvd.barrier, warm_up=_WARM_UP))
