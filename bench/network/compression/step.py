"""Ranks of `bench.network.compression.row`: gradients are there, a step is their communication."""

from __future__ import annotations

import gc
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from aiacc.compression.compressor import AUTO
from bench.collectives.training import Ready
from bench.network.ranks import gloo

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


def rank(task: Any) -> dict[str, Any]:
    """Run the contenders, one after the other."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(int(os.environ["AIACC_RANK"]))
    gradients = [torch.randn(shape, generator=random) for shape in task["shapes"]]
    model = Model(gradients)
    found: dict[str, Any] = {}
    for number, one in enumerate(task["contenders"]):
        for gradient in gradients:
            gradient.normal_(generator=random)
        said = io.StringIO()  # what "auto" has chosen
        hearing = redirect_stderr(said) if one["name"] == AUTO else nullcontext()
        with hearing, _trained(one, model, number) as (module, finish, update):
            seconds = []
            for _ in range(one["warmup"] + task["steps"]):
                for weight in model.weights:
                    weight.grad = None
                begun = time.perf_counter()
                module(torch.zeros((), requires_grad=True)).backward()
                finish()
                seconds.append(time.perf_counter() - begun)
                update()
        found[one["name"]] = {"samples": seconds[one["warmup"] :]}
        if said.getvalue():
            found[one["name"]]["said"] = said.getvalue().splitlines()
        gc.collect()
    return found


@contextmanager
def _trained(
    one: Any, model: Model, number: int
) -> Iterator[tuple[torch.nn.Module, Callable[[], None], Callable[[], object]]]:
    """What is called, what ends communication, and what ends the step."""
    if not one["codec"]:
        with gloo(number, one["contexts"]):
            yield _ddp(one, model), lambda: None, lambda: None
        return
    import aiacc.torch as hvd

    os.environ.pop("AIACC_ENGINE", None)
    os.environ.update({"AIACC_ENGINE": "tcp"} if one["flat"] else {})
    hvd.init()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer: Any = hvd.DistributedOptimizer(
        sgd, model.named_parameters(), compression=one["codec"]
    )

    def update() -> None:
        with optimizer.skip_synchronize():
            optimizer.step()

    yield model, optimizer.synchronize, update
    hvd.shutdown()


def _ddp(one: Any, model: Model) -> DistributedDataParallel:
    if one["hook"] != "powersgd":
        module = DistributedDataParallel(model, init_sync=False, bucket_cap_mb=one["cap_mb"])
        if one["hook"]:
            module.register_comm_hook(None, fp16_compress_hook)
        return module
    # One bucket: the hook waits for operations in gloo's threads, and with several the ranks end up
    # waiting for different ones.
    module = DistributedDataParallel(model, init_sync=False, bucket_cap_mb_list=[_ONE_BUCKET_MIB])
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=_RANK, start_powerSGD_iter=_START
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return module
