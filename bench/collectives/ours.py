"""The same work by aiacc's public API."""

from typing import Any

import torch

import aiacc.torch as hvd
from bench.collectives import training
from bench.collectives.measure import Contender
from bench.collectives.rows import LATENCY_BYTES, STEP_GROUPS
from bench.collectives.tensors import Tensors


def one_by_one(data: Tensors, backward: bool, label: str) -> Contender:
    """Each tensor averaged in place, asynchronously, then synchronised."""
    pairs = [
        (tensor, f"{label}.{name}") for name, tensor in zip(data.names, data.tensors, strict=True)
    ]
    if backward:
        pairs.reverse()
    start, end, average = hvd.allreduce_async_, hvd.synchronize, hvd.Average

    def run() -> None:
        handles = [start(tensor, name=name, op=average) for tensor, name in pairs]
        for handle in handles:
            end(handle)

    return Contender("aiacc", run, data.fill, check=data.check_average)


def blocking(data: Tensors, calls: int) -> Contender:
    """One blocking sum in place, repeated."""
    tensor = data.tensors[0]
    call, total = hvd.allreduce_, hvd.Sum
    name = f"blocking.{tensor.nbytes}"
    assert tensor.nbytes in LATENCY_BYTES.values()

    def run() -> None:
        call(tensor, name=name, op=total)

    return Contender("aiacc", run, data.fill, check=lambda: data.check_repeated_sum(calls))


def submit(data: Tensors) -> Contender:
    """The asynchronous calls alone."""
    pairs = [
        (tensor, f"submit.{name}") for name, tensor in zip(data.names, data.tensors, strict=True)
    ]
    start, average = hvd.allreduce_async_, hvd.Average
    handles: list[int] = []

    def run() -> None:
        for tensor, name in pairs:
            handles.append(start(tensor, name=name, op=average))

    def finish() -> None:
        for handle in handles:
            hvd.synchronize(handle)
        handles.clear()

    return Contender("aiacc", run, data.fill, finish, data.check_average)


_BF16 = {"compression": hvd.Compression.bf16}
#: By row, which contender gives `DistributedOptimizer` which options: how gradients are divided in
#: `step`, and how they travel in `step_bf16`.
STEPS: dict[str, dict[str, dict[str, Any]]] = {
    "step": {
        "aiacc": {},
        "aiacc_groups": {"groups": STEP_GROUPS},
        "aiacc_view": {"gradient_as_bucket_view": True},
        "aiacc_zeroed": {},
        "aiacc_view_zeroed": {"gradient_as_bucket_view": True},
    },
    "step_bf16": {
        "aiacc": _BF16,
        "aiacc_view": {**_BF16, "gradient_as_bucket_view": True},
        "aiacc_fp16": {"compression": hvd.Compression.fp16},
        "aiacc_fp32": {},
    },
}


def steps(key: str, gradients: Tensors, size: int) -> list[Contender]:
    """DistributedOptimizer around the SGD that DDP gets, in all ways of the row ``key``."""
    return [
        _step(name, f"{key}.{name}", gradients, size, options)
        for name, options in STEPS[key].items()
    ]


def _step(
    name: str, label: str, gradients: Tensors, size: int, options: dict[str, Any]
) -> Contender:
    def wrap(model: training.FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        named = [(f"{label}.{key}", parameter) for key, parameter in model.named_parameters()]
        return model, hvd.DistributedOptimizer(training.plain_sgd(model), named, **options)

    drops = not name.endswith("_zeroed")
    return training.contender(name, gradients, wrap, (size + 1) / 2, drops)
