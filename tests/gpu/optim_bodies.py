"""Optimizers and divided work with tensors on a GPU, against the same on the CPU."""

from __future__ import annotations

from typing import Any

import torch

import aiacc.torch as hvd
from aiacc.optim import LAMB, LARS, AdamSGD
from tests.gpu.bodies import begin

SHAPES = [(7, 5), (16,), (3, 2, 3, 3), (1, 1), (33, 65), (300, 300), (4, 4)]
#: Optimizers for which the core has kernels.
CASES: list[tuple[Any, dict[str, Any]]] = [
    (LARS, {"lr": 0.5, "weight_decay": 0.1}),
    (LARS, {"lr": 0.5, "weight_decay": 0.1, "nesterov": True, "exclude": None}),
    (LARS, {"lr": 0.5, "momentum": 0.0, "trust_clamp": (1e-3, 2e-3)}),
    (LARS, {"lr": 0.5, "dampening": 0.2, "maximize": True}),
    (LARS, {"lr": 1e-3, "larc": True}),
    (LAMB, {"lr": 0.05, "capturable": True}),
    (
        LAMB,
        {"lr": 0.05, "weight_decay": 0.1, "max_grad_norm": 1, "exclude": None, "capturable": True},
    ),
    (LAMB, {"lr": 0.05, "trust_clamp": (0.1, 0.2), "bias_correction": False}),
    (LAMB, {"lr": 0.05, "betas": (0.5, 0.7), "maximize": True}),
]


def parameters(device: str = "cuda") -> list[torch.nn.Parameter]:
    """With gradients that `fill_gradients` fills; the last one is zero, and so is its norm."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator, device="cpu") for shape in SHAPES]
    made[-1].zero_()
    params = [torch.nn.Parameter(value.cuda() if device == "cuda" else value) for value in made]
    for parameter in params:
        parameter.grad = torch.empty_like(parameter)
    return params


def fill_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params:
        assert parameter.grad is not None
        parameter.grad.copy_(torch.randn(parameter.shape, generator=generator, device="cpu"))


def trained(kind: Any, options: dict[str, Any], device: str = "cuda") -> list[torch.Tensor]:
    """Parameters after four steps."""
    params = parameters(device)
    optimizer = kind(params, **options)
    for step in range(4):
        fill_gradients(params, step)
        optimizer.step()
    return [parameter.detach() for parameter in params]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-5, atol=1e-5)


def large_batch_optimizers() -> None:
    """Steps on the GPU, by operations and by kernels, are those on the CPU."""
    begin()
    hybrid = {"lr": 0.05, "share": 0.3}
    assert_close(trained(AdamSGD, hybrid), trained(AdamSGD, hybrid, "cpu"))
    for kind, options in CASES:
        expected = trained(kind, options, "cpu")
        assert_close(trained(kind, options | {"foreach": True}), expected)
        lr = options["lr"]
        for rate in (lr, torch.tensor(lr, device="cuda"), torch.tensor(lr, device="cpu")):
            found = trained(kind, options | {"lr": rate, "fused": True})
            assert_close(found, expected)
            again = trained(kind, options | {"lr": rate})  # kernels are the default
            assert all(map(torch.equal, found, again))
    hvd.shutdown()


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
