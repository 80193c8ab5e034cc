"""One rank of a job that repeats the training step of a workload; rank 0 writes what it took.

The device is modelled: forward and backward pass sleep, and leave the CPU to the communication.
Started by `bench.network.training`, in a virtual host.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.rows import BFLOAT16_EXACT
from bench.collectives.tensors import Tensors
from bench.collectives.training import FreeModel
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


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--contender", choices=("aiacc", "ddp", "none"), required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--compression", choices=("none", "fp16", "bf16"), default="none")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["AIACC_RANK"]), int(os.environ["AIACC_SIZE"])
    work = workload(options.workload)
    largest_sum = 0 if options.compression == "none" else BFLOAT16_EXACT
    gradients = Tensors(work.shapes, rank, size, largest_sum)
    gradients.fill()  # once: averages of averages are the same
    device = _Device(work)
    model = FreeModel(gradients, device.gradient)
    module: torch.nn.Module = model
    optimizer: torch.optim.Optimizer = _NoUpdate(model.parameters())
    found: dict[str, object] = {}
    if options.contender == "aiacc":
        import aiacc.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            model.named_parameters(),
            groups=options.groups or None,
            compression=getattr(hvd.Compression, options.compression),
        )
    elif options.contender == "ddp":
        dist.init_process_group(
            "gloo", init_method=f"tcp://{os.environ['AIACC_ADDR']}", rank=rank, world_size=size
        )
        module = DistributedDataParallel(model)
    value = torch.zeros(())
    ends = []
    for _ in range(options.warmup + options.steps + 1):
        optimizer.zero_grad()
        device.forward()
        module(value).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    if options.contender != "none":
        averages = [parameter.grad for parameter in model.parameters()]
        gradients.check(averages, (size + 1) / 2)  # type: ignore[arg-type]
    if rank == 0:
        found["seconds"] = [after - before for before, after in itertools.pairwise(ends)][
            options.warmup :
        ]
        if options.contender == "aiacc":
            import aiacc

            found["lanes"] = aiacc.stats()["lanes"]
            found["rounds_per_step"] = aiacc.stats()["rounds"] / len(ends)
            found["control_bytes_per_step"] = aiacc.stats()["control_bytes"] / len(ends)
        options.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
