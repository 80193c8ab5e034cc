"""Optimizers and divided work with tensors on a GPU, against the same on the CPU."""

from __future__ import annotations

import torch

import aiacc.torch as hvd
from aiacc.optim import LAMB, LARS, AdamSGD
from tests.gpu.bodies import begin

SHAPES = [(7, 5), (16,), (3, 2, 3, 3), (1, 1), (33, 65)]


def _steps(
    kind: type[torch.optim.Optimizer], on_gpu: bool, **options: object
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def made(shape: tuple[int, ...]) -> torch.Tensor:
        numbers = torch.randn(shape, generator=generator, device="cpu")
        return numbers.cuda() if on_gpu else numbers

    if options.pop("fused", None) and on_gpu:
        options |= {"fused": True, "lr": torch.tensor(options["lr"], device="cuda")}
    params = [torch.nn.Parameter(made(shape)) for shape in SHAPES]
    optimizer = kind(params, **options)  # type: ignore[arg-type]
    for _ in range(4):
        for parameter, shape in zip(params, SHAPES, strict=True):
            parameter.grad = made(shape)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in params]


def large_batch_optimizers() -> int:
    """Steps on the GPU are those on the CPU; how many optimizers took them."""
    begin()
    kinds = (
        (LARS, {"lr": 0.5, "weight_decay": 0.1, "nesterov": True}),
        (LARS, {"lr": 0.5, "trust_clamp": (1e-3, 2e-3), "exclude": None, "fused": True}),
        (LARS, {"lr": 0.5, "momentum": 0.0, "larc": True, "fused": True}),
        (LARS, {"lr": 0.5, "weight_decay": 0.1, "foreach": True}),
        (LAMB, {"lr": 0.05, "max_grad_norm": 1.0, "fused": True}),
        (LAMB, {"lr": 0.05, "capturable": True, "exclude": None, "fused": True}),
        (LAMB, {"lr": 0.05, "trust_clamp": (0.1, 0.2)}),
        (LAMB, {"lr": 0.05, "foreach": True, "max_grad_norm": 1.0}),
        (AdamSGD, {"lr": 0.05, "share": 0.3}),
    )
    for kind, options in kinds:
        found, expected = (_steps(kind, on_gpu, **options) for on_gpu in (True, False))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    hvd.shutdown()
    return len(kinds)


def _several(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensor @ tensor.T, tensor > 0, tensor[:0], tensor.sum().to(torch.bfloat16)


def divided_maps() -> list[str]:
    """Results of all ranks are those of a loop, on the GPU; what was decided at last."""
    begin()
    generator = torch.Generator().manual_seed(2)
    tensors = [
        torch.randn(shape, generator=generator, device="cpu").cuda()
        for shape in ((3, 3), (40, 9), (1, 1), (17, 17))
    ]
    for _ in range(6):
        mapped = hvd.parallel_map(tensors, _several, divide=True)
        for found, expected in zip(mapped, map(_several, tensors), strict=True):
            for one, other in zip(found, expected, strict=True):
                assert one.is_cuda
                assert torch.equal(one.cpu(), other.cpu())
    hvd.shutdown()
    return [mapped.decision.reason]
