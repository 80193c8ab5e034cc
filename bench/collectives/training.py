"""A training step whose backward costs next to nothing, so that communication stands alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.gloo import Gloo, beside_aiacc
from bench.collectives.tensors import BFLOAT16_EXACT, Tensors
from bench.shapes import resnet50
from bench.turns import Contender, take_turns

Wrapped = tuple[torch.nn.Module, torch.optim.Optimizer]


class Ready(torch.autograd.Function):
    """Identity whose backward hands over a gradient that is already there."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        value: torch.Tensor,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        pause: Callable[[], None],
    ) -> torch.Tensor:
        """``value``; ``pause`` is called before the gradient of ``parameter`` is handed over."""
        ctx.gradient, ctx.pause = gradient, pause  # type: ignore[attr-defined]
        return value.view_as(value)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, upstream: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """``upstream``, and the gradient."""
        ctx.pause()  # type: ignore[attr-defined]
        # A new alias: nobody else refers to it, so autograd keeps it as .grad without a copy.
        return upstream, ctx.gradient.detach(), None, None  # type: ignore[attr-defined]


def _at_once() -> None:
    """No pause."""


class FreeModel(torch.nn.Module):
    """Parameters of ``gradients``' shapes, whose gradients are ``gradients``, last one first."""

    def __init__(self, gradients: Tensors) -> None:
        """Keep the gradients, which the backward pass hands over; the parameters are zero."""
        super().__init__()
        self.gradients = gradients
        for name, gradient in zip(gradients.names, gradients.tensors, strict=True):
            parameter = torch.nn.Parameter(torch.zeros_like(gradient))
            self.register_parameter(name.replace(".", "_"), parameter)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Chain the parameters; the result equals ``value``."""
        for parameter, gradient in zip(self.parameters(), self.gradients.tensors, strict=True):
            value = Ready.apply(value, parameter, gradient, _at_once)  # type: ignore[no-untyped-call]
        return value


def rank(task: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Steps by aiacc's optimizer and by DistributedDataParallel over gloo, in turn."""
    import aiacc.torch as hvd

    compressed = task["compressed"]
    with beside_aiacc(task) as gloo:
        data = gloo.tensors(resnet50(), BFLOAT16_EXACT if compressed else 0)
        contenders = [
            distributed(hvd, data, key, **options)
            for key, options in _ours(hvd, compressed).items()
        ]
        contenders += [
            by_ddp(data, key, options, compressed)
            for key, options in _theirs(gloo, task["bucket_mib"]).items()
        ]
        if compressed:
            plain = _theirs(gloo, [25]).items()
            contenders += [by_ddp(data, f"{key}_fp32", options) for key, options in plain]
        else:
            contenders.append(alone(data, "none", gloo.rank))
        return take_turns(contenders, task["rounds"], gloo.align)


def _ours(hvd: Any, compressed: bool) -> dict[str, dict[str, Any]]:
    """Options of `DistributedOptimizer`, by contender."""
    if compressed:
        bf16 = {"compression": hvd.Compression.bf16}
        return {
            "aiacc": bf16,
            "aiacc_view": {**bf16, "gradient_as_bucket_view": True},
            "aiacc_fp16": {"compression": hvd.Compression.fp16},
        }
    return {
        "aiacc": {},
        "aiacc_groups": {"groups": 8},
        "aiacc_view": {"gradient_as_bucket_view": True},
    }


def _theirs(gloo: Gloo, bucket_mib: list[int]) -> dict[str, dict[str, Any]]:
    """Options of DistributedDataParallel, by contender."""
    return {
        f"ddp_{mib}_{contexts}{'_view' if view else ''}": {
            "bucket_cap_mb": mib,
            "process_group": group,
            "gradient_as_bucket_view": view,
        }
        for view in (False, True)
        for mib in bucket_mib
        for contexts, group in gloo.groups.items()
    }


def distributed(hvd: Any, data: Tensors, key: str, **options: Any) -> Contender:
    """A step by the `DistributedOptimizer` of aiacc or Horovod."""

    def wrap(model: FreeModel) -> Wrapped:
        named = [(f"{key}.{name}", parameter) for name, parameter in model.named_parameters()]
        return model, hvd.DistributedOptimizer(_sgd(model), named, **options)

    return contender(key, data, wrap, (data.size + 1) / 2)


def by_ddp(
    data: Tensors, key: str, options: Mapping[str, Any], compressed: bool = False
) -> Contender:
    """A step by `DistributedDataParallel`."""

    def wrap(model: FreeModel) -> Wrapped:
        module = DistributedDataParallel(model, **options)
        if compressed:  # to float16: for bfloat16 torch refuses gloo
            module.register_comm_hook(options["process_group"], fp16_compress_hook)
        return module, _sgd(model)

    return contender(key, data, wrap, (data.size + 1) / 2)


def alone(data: Tensors, key: str, rank: int) -> Contender:
    """A step of one rank by itself."""
    return contender(key, data, lambda model: (model, _sgd(model)), rank + 1.0)


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def contender(
    name: str, gradients: Tensors, wrap: Callable[[FreeModel], Wrapped], factor: float
) -> Contender:
    """zero_grad, forward, backward and step of plain SGD.

    Args:
        name: Its key.
        gradients: What the backward hands over; refilled before each step.
        wrap: Makes the module to call and the optimizer to step.
        factor: The gradient that must be applied, over the pattern of ``gradients``.
    """
    model = FreeModel(gradients)
    module, optimizer = wrap(model)
    parameters = list(model.parameters())
    value = torch.zeros((), device=parameters[0].device)

    def prepare() -> None:
        gradients.fill()
        with torch.no_grad():
            torch._foreach_zero_(parameters)

    def run() -> None:
        optimizer.zero_grad()
        module(value).backward()
        optimizer.step()

    def check() -> None:
        # From zero with a learning rate of 1, the parameters are minus the gradient.
        gradients.check([parameter.detach() for parameter in parameters], -factor)

    return Contender(name, run, prepare, check=check)
