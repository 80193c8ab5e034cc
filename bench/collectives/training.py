"""A training step whose backward costs next to nothing, so that communication stands alone."""

import functools
from collections.abc import Callable

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.measure import Contender
from bench.collectives.peers import Gloo
from bench.collectives.tensors import Tensors

Wrap = Callable[["FreeModel"], tuple[torch.nn.Module, torch.optim.Optimizer]]


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


class FreeModel(torch.nn.Module):
    """Parameters of ``gradients``' shapes, whose gradients are ``gradients``, last one first."""

    def __init__(
        self, gradients: Tensors, pause: Callable[[int], None] = lambda index: None
    ) -> None:
        """Keep the gradients; the parameters are new and zero.

        Args:
            gradients: What the backward pass hands over.
            pause: Called with the index of every gradient before it is handed over.
        """
        super().__init__()
        self.gradients = gradients
        self.pause = pause
        for name, gradient in zip(gradients.names, gradients.tensors, strict=True):
            parameter = torch.nn.Parameter(torch.zeros(gradient.shape))
            self.register_parameter(name.replace(".", "_"), parameter)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Chain the parameters; the result equals ``value``."""
        pairs = zip(self.parameters(), self.gradients.tensors, strict=True)
        for index, (parameter, gradient) in enumerate(pairs):
            pause = functools.partial(self.pause, index)
            value = Ready.apply(value, parameter, gradient, pause)  # type: ignore[no-untyped-call]
        return value


def contender(
    name: str, gradients: Tensors, wrap: Wrap, factor: float, set_to_none: bool = True
) -> Contender:
    """zero_grad, forward, backward and step of plain SGD.

    Args:
        name: Key of ``rows.CONTENDERS``.
        gradients: What the backward hands over; refilled before each step.
        wrap: Makes the module to call and the optimizer to step.
        factor: The gradient that must be applied, over the pattern of ``gradients``.
        set_to_none: Argument of zero_grad: whether gradients are dropped or zeroed.
    """
    model = FreeModel(gradients)
    module, optimizer = wrap(model)
    parameters = list(model.parameters())
    value = torch.zeros(())

    def prepare() -> None:
        gradients.fill()
        with torch.no_grad():
            for parameter, given in zip(parameters, gradients.tensors, strict=True):
                parameter.zero_()
                kept = parameter.grad
                if not set_to_none and kept is not None and kept.data_ptr() == given.data_ptr():
                    parameter.grad = kept.clone()  # to be zeroed, and what is given is not

    def run() -> None:
        optimizer.zero_grad(set_to_none=set_to_none)
        module(value).backward()
        optimizer.step()

    def check() -> None:
        # From zero with a learning rate of 1, the parameters are minus the gradient.
        gradients.check([parameter.detach() for parameter in parameters], -factor)

    return Contender(name, run, prepare, check=check)


def plain_sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """SGD without momentum, learning rate 1."""
    return torch.optim.SGD(model.parameters(), lr=1.0)


def without_communication(gradients: Tensors, rank: int) -> Contender:
    """The same step of one rank alone: the floor for everybody else."""
    return contender("none", gradients, lambda model: (model, plain_sgd(model)), rank + 1.0)


def ddp(gloo: Gloo, gradients: Tensors) -> list[Contender]:
    """DistributedDataParallel as shipped, over four contexts, and with gradients in its buckets."""
    average = (gloo.size + 1) / 2

    def plain(model: FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return DistributedDataParallel(model), plain_sgd(model)

    def multi(model: FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return DistributedDataParallel(model, process_group=gloo.multi), plain_sgd(model)

    def view(model: FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return DistributedDataParallel(model, gradient_as_bucket_view=True), plain_sgd(model)

    return [
        contender("ddp", gradients, plain, average),
        contender("ddp_multi", gradients, multi, average),
        contender("ddp_view", gradients, view, average),
    ]


def ddp_fp16(gloo: Gloo, gradients: Tensors) -> Contender:
    """DistributedDataParallel whose hook sends float16: for bfloat16 torch refuses gloo."""

    def wrap(model: FreeModel) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = DistributedDataParallel(model)
        module.register_comm_hook(None, fp16_compress_hook)
        return module, plain_sgd(model)

    return contender("ddp_fp16", gradients, wrap, (gloo.size + 1) / 2)
