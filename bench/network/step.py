"""Training steps of a workload on the ranks of a job: real communication, a modelled device.

Forward and backward pass sleep, and leave the CPU to the communication.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.tensors import Tensors
from bench.collectives.training import FreeModel
from bench.network.allreduce import BFLOAT16_EXACT
from bench.network.workloads import Workload, workload


class _NoUpdate(torch.optim.Optimizer):
    """Leaves the parameters as they are: the update would run on the device."""

    def __init__(self, parameters: object) -> None:
        """Take the parameters."""
        super().__init__(parameters, {})  # type: ignore[arg-type]

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


class _Device:
    """Sleeps as long as the modelled device computes."""

    def __init__(self, work: Workload) -> None:
        """Take the times of ``work``."""
        self._forward_s, self._backward_s = work.forward_s, work.backward_s
        self._began = 0.0

    def forward(self) -> None:
        """Sleep through the forward pass; the backward pass begins when this returns."""
        time.sleep(self._forward_s)
        self._began = time.monotonic()

    def gradient(self, index: int) -> None:
        """Sleep until the gradient of that parameter is computed."""
        left = self._began + self._backward_s[index] - time.monotonic()
        if left > 0:
            time.sleep(left)


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a rank: train in the way that ``task`` says; seconds of each step, and what was sent."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["AIACC_RANK"]), int(os.environ["AIACC_SIZE"])
    work = workload(task["workload"])
    if task["compute_s"]:
        work = work.lasting(task["compute_s"])
    narrow = task["compression"] != "none"
    gradients = Tensors(work.shapes, rank, size, BFLOAT16_EXACT if narrow else 0)
    gradients.fill()  # once: averages of averages are the same
    device = _Device(work)
    model = FreeModel(gradients, device.gradient)
    module: torch.nn.Module = model
    optimizer: torch.optim.Optimizer = _NoUpdate(model.parameters())
    if task["kind"] == "aiacc":
        import aiacc.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            model.named_parameters(),
            groups=task["groups"] or None,
            compression=getattr(hvd.Compression, task["compression"]),
        )
    elif task["kind"] == "ddp":
        meeting = f"tcp://{os.environ['AIACC_ADDR']}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        module = DistributedDataParallel(
            model,
            bucket_cap_mb=task["bucket_mb"],
            gradient_as_bucket_view=True,
            init_sync=False,
        )
    value = torch.zeros(())
    ends = []
    for _ in range(1 + task["warm_up"] + task["steps"]):
        optimizer.zero_grad()
        device.forward()
        module(value).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    if task["kind"] != "none":
        averages = [parameter.grad for parameter in model.parameters()]
        gradients.check(averages, (size + 1) / 2)  # type: ignore[arg-type]
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    found: dict[str, Any] = {"seconds": seconds[task["warm_up"] :]}
    if task["kind"] == "aiacc":
        import aiacc

        stats = aiacc.stats()
        found["lanes"] = stats["lanes"]
        found["rounds_per_step"] = stats["rounds"] / len(ends)
        found["control_bytes_per_step"] = stats["control_bytes"] / len(ends)
    return found
