"""One rank of a measurement on the GPU; `bench.gpu.jobs` starts it."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.torch.reducer.plan import FUSED_BYTES
from bench import shapes
from bench.collectives.training import FreeModel

_WARM_UP = 5
_SAMPLES = 20
_COMPRESSIONS = ("none", "bf16", "int8", "mstopk")


def main() -> None:
    """Measure what the arguments say, write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=list(_WORK), required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    hvd.init()
    result = _WORK[options.work]()
    hvd.shutdown()
    options.output.write_text(json.dumps(result))


def _steps() -> dict[str, list[float]]:
    """Milliseconds of a step whose backward pass costs next to nothing, by contender and sample."""
    distributed.init_process_group("nccl", rank=hvd.rank(), world_size=hvd.size())
    contenders = {
        "no communication": _step(lambda model: (model, _sgd(model))),
        "DDP": _step(lambda model: (DistributedDataParallel(model), _sgd(model))),
        "DDP, gradients as views": _step(
            lambda model: (
                DistributedDataParallel(model, gradient_as_bucket_view=True),
                _sgd(model),
            )
        ),
        "aiacc": _step(lambda model: (model, hvd.DistributedOptimizer(_sgd(model)))),
        "aiacc, gradients as views": _step(
            lambda model: (
                model,
                hvd.DistributedOptimizer(_sgd(model), gradient_as_bucket_view=True),
            )
        ),
    }
    samples = _interleaved(contenders)
    distributed.destroy_process_group()
    return samples


def _step(wrap: Callable[[FreeModel], tuple[torch.nn.Module, Any]]) -> Callable[[], None]:
    names, tensors = _resnet()
    gradients: Any = SimpleNamespace(names=names, tensors=tensors)
    module, optimizer = wrap(FreeModel(gradients).cuda())
    value = torch.zeros((), device="cuda")

    def run() -> None:
        optimizer.zero_grad()
        module(value).backward()
        optimizer.step()

    return run


def _gradients() -> dict[str, list[float]]:
    """Milliseconds of the sum of ResNet-50's 161 gradients, by sample."""
    names, tensors = _resnet()

    def run() -> None:
        pairs = zip(names, tensors, strict=True)
        handles = [hvd.allreduce_async_(tensor, name=name) for name, tensor in pairs]
        for handle in handles:
            hvd.synchronize(handle)

    samples = _interleaved({"all-reduce": run})
    wrong = [name for name, tensor in zip(names, tensors, strict=True) if not tensor.eq(1).all()]
    if wrong:
        raise AssertionError(f"the average of ones is not one: {wrong}")
    return samples


def _coded() -> dict[str, list[float]]:
    """Milliseconds of the sum of ResNet-50's gradients in groups, by compression and sample."""
    _, tensors = _resnet()
    groups: list[list[torch.Tensor]] = [[]]
    for tensor in tensors:
        if sum(one.nbytes for one in groups[-1]) >= FUSED_BYTES:
            groups.append([])
        # Of different magnitudes, so that some are the largest.
        groups[-1].append(torch.randn_like(tensor))

    def contender(compression: str) -> Callable[[], None]:
        def run() -> None:
            handles = [
                hvd.grouped_allreduce_async(
                    group, name=f"{compression}.{number}", compression=compression
                )
                for number, group in enumerate(groups)
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return run

    return _interleaved({name: contender(name) for name in _COMPRESSIONS})


def _interleaved(contenders: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Everybody in turn; a sample lasts until the GPU is done and all ranks are there again."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(_WARM_UP + _SAMPLES):
        for name, run in contenders.items():
            torch.cuda.synchronize()
            hvd.barrier()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            took = time.perf_counter() - begin
            if index >= _WARM_UP:
                samples[name].append(1000 * took)
    return samples


def _resnet() -> tuple[list[str], list[torch.Tensor]]:
    described = shapes.resnet50()[::-1]
    return [name for name, _ in described], [
        torch.ones(shape, device="cuda") for _, shape in described
    ]


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


_WORK: dict[str, Callable[[], dict[str, list[float]]]] = {
    "step": _steps,
    "gradients": _gradients,
    "coded": _coded,
}


if __name__ == "__main__":
    main()
