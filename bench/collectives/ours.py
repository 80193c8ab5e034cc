"""The same work by aiacc's public API."""

import torch

import aiacc.torch as hvd
from bench.collectives import training
from bench.collectives.measure import Contender
from bench.collectives.rows import LATENCY_BYTES
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


def step(gradients: Tensors, size: int) -> Contender:
    """DistributedOptimizer around the SGD that DDP gets."""

    def wrap(model: training.FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        optimizer = hvd.DistributedOptimizer(
            training.plain_sgd(model), named_parameters=model.named_parameters()
        )
        return model, optimizer

    return training.contender("aiacc", gradients, wrap, (size + 1) / 2)
