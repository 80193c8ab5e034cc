"""Jobs whose ranks share the GPU by turns: they compare contenders, and say nothing of two GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

import aiacc.torch as hvd
from aiacc.run.local import free_port
from bench import job
from bench.shapes import resnet50
from bench.turns import Contender, Spans, seconds, take_turns

_ROUNDS, _WARM_UP = 20, 5
#: NCCL over sockets between ranks that it takes for ranks of different hosts: it refuses to let
#: those of one host share a GPU. One socket for each channel, so that lanes are what adds flows.
_SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
    "NCCL_MAX_CTAS": "2",
}


def run(work: str, ranks: int, rounds: int | None, variables: Mapping[str, str]) -> dict[str, Any]:
    """Samples of each contender of one job of ``ranks``."""
    common = {
        # torch's communicators and aiacc's are in one process: see docs/gpu.md.
        "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **(_SOCKETS if ranks > 1 else {}),
    }
    found = job.run(
        work,
        {"rounds": rounds or _ROUNDS},
        ranks=ranks,
        variables={**common, **variables},
        timeout_s=120,
    )
    return {name: seconds([spans[name] for spans in found]) for name in found[0]}


def begin() -> None:
    """Join the job, on GPU 0."""
    if "NCCL_NET" in os.environ:
        os.environ["NCCL_HOSTID"] = f"host{os.environ['AIACC_RANK']}"
    torch.cuda.set_device(0)
    hvd.init()


def in_turn(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Spans]:
    """Everybody in turn; a call lasts until the GPU is done."""

    def finished(run: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            run()
            torch.cuda.synchronize()

        return call

    made = [
        Contender(name, finished(run), prepare=torch.cuda.synchronize)
        for name, run in contenders.items()
    ]
    return dict(take_turns(made, rounds, hvd.barrier, warm_up=_WARM_UP))


def gradients() -> tuple[list[str], list[torch.Tensor]]:
    """Names and ones of the shapes of ResNet-50's gradients, in the order of the backward pass."""
    described = resnet50()[::-1]
    return [name for name, _ in described], [
        torch.ones(shape, device="cuda") for _, shape in described
    ]
