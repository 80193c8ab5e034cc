"""One rank of a job in which ways to travel take turns; rank 0 writes what their steps took.

Started by `bench.network.compression`, in a virtual host, with the path of a JSON file. Gradients
are there at once, so a step is their communication.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from aiacc.compression.compressor import AUTO
from bench.collectives.training import Ready

_RANK = 4  # of PowerSGD's matrices
_ONE_BUCKET_MIB = 1 << 16
_START = 2  # the first step in which it compresses: DDP forms its buckets anew after the first


class Model(torch.nn.Module):
    """Parameters whose gradients are there already."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        """Parameters are in the memory of the gradients: their values are of no matter."""
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(each) for each in gradients)
        self._gradients = gradients

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Chain the parameters; the result equals ``value``."""
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            value = Ready.apply(value, weight, gradient, lambda: None)  # type: ignore[no-untyped-call]
        return value


def main() -> None:
    """Run the contenders, one after the other."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    rank = int(os.environ["AIACC_RANK"])
    random = torch.Generator().manual_seed(rank)
    gradients = [torch.randn(shape, generator=random) for shape in job["shapes"]]
    model = Model(gradients)
    found: dict[str, Any] = {}
    for number, task in enumerate(job["contenders"]):
        for gradient in gradients:
            gradient.normal_(generator=random)
        said = io.StringIO()  # what "auto" has chosen
        hearing = redirect_stderr(said) if task["name"] == AUTO else nullcontext()
        with hearing, _trained(task, model, number) as (module, finish, update):
            seconds = []
            for _ in range(task["warmup"] + job["steps"]):
                for weight in model.weights:
                    weight.grad = None
                begun = time.perf_counter()
                module(torch.zeros((), requires_grad=True)).backward()
                finish()
                seconds.append(time.perf_counter() - begun)
                update()
        found[task["name"]] = {"seconds": seconds[task["warmup"] :]}
        if said.getvalue():
            found[task["name"]]["said"] = said.getvalue().splitlines()
        gc.collect()
        if rank == 0:
            Path(job["output"]).write_text(json.dumps(found))


@contextmanager
def _trained(
    task: Any, model: Model, number: int
) -> Iterator[tuple[torch.nn.Module, Callable[[], None], Callable[[], object]]]:
    """What is called, what ends communication, and what ends the step."""
    if task["codec"]:
        import aiacc.torch as hvd

        engine = {"AIACC_ENGINE": "tcp"} if task["flat"] else {}
        os.environ.pop("AIACC_ENGINE", None)
        os.environ.update(engine)
        hvd.init()
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer: Any = hvd.DistributedOptimizer(
            sgd, model.named_parameters(), compression=task["codec"]
        )

        def update() -> None:
            with optimizer.skip_synchronize():
                optimizer.step()

        yield model, optimizer.synchronize, update
        hvd.shutdown()
        return
    host, _, port = os.environ["AIACC_ADDR"].rpartition(":")
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{int(port) + 1 + number}",
        rank=int(os.environ["AIACC_RANK"]),
        world_size=int(os.environ["AIACC_SIZE"]),
    )
    # One bucket: the hook waits for operations in gloo's threads, and with several the ranks end up
    # waiting for different ones.
    module = DistributedDataParallel(model, init_sync=False, bucket_cap_mb_list=[_ONE_BUCKET_MIB])
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=_RANK, start_powerSGD_iter=_START
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    yield module, lambda: None, lambda: None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
