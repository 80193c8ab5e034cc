"""A device that is modelled, and a model of one module for each parameter that runs on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import torch

from bench.collectives.training import Ready
from bench.network.workloads import Workload

#: A call of a module takes less than that, and a wait for an all-gather more.
_CALL_S = 0.3e-3


class Device:
    """Sleeps as long as the modelled device computes, and leaves the CPU to the communication.

    Like a GPU it has a clock of its own: a host that comes a little late, because sleeps and Python
    take their time, does not delay it. What a module waits for before it is called does.
    """

    def __init__(self, work: Workload) -> None:
        """Take the times of ``work``."""
        self._forward_s, self._backward_s = work.layers_s, work.backward_s
        self._clock = self._called = 0.0

    def begin(self) -> None:
        """A step begins: now, or when what the device has to do is done."""
        self._clock = max(self._clock, time.monotonic())

    def call(self) -> None:
        """The next module is about to be called."""
        self._called = time.monotonic()

    def forward(self, index: int) -> None:
        """Sleep through the forward pass of that parameter's module, which runs now."""
        waited = time.monotonic() - self._called
        if waited > _CALL_S:
            self._clock += waited
        self._clock += self._forward_s[index]
        self._sleep(0.0)

    def gradient(self, index: int) -> None:
        """Sleep until the gradient of that parameter is computed."""
        self._sleep(self._backward_s[index])

    def end(self) -> None:
        """The backward pass is over."""
        self._clock += max(self._backward_s)

    def _sleep(self, after_s: float) -> None:
        left = self._clock + after_s - time.monotonic()
        if left > 0:
            time.sleep(left)


class _Layer(torch.nn.Module):
    """One parameter, which its forward pass needs."""

    def __init__(self, gradient: torch.Tensor, device: Device, index: int, own: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(gradient.shape) if own else gradient)
        self._gradient, self._device, self._index = gradient, device, index

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.weight.detach()  # a use as torch sees it: the decoupled schedule waits for it
        self._device.forward(self._index)
        pause = functools.partial(self._device.gradient, self._index)
        result: torch.Tensor = Ready.apply(value, self.weight, self._gradient, pause)  # type: ignore[no-untyped-call]
        return result


class LayeredModel(torch.nn.Module):
    """Parameters of ``gradients``' shapes, a module for each, whose gradients are ``gradients``."""

    def __init__(self, gradients: Sequence[torch.Tensor], device: Device, own: bool) -> None:
        """Parameters are zero; in the memory of the gradients and of no matter unless ``own``."""
        super().__init__()
        self._device = device
        self.layers = torch.nn.ModuleList(
            _Layer(gradient, device, index, own) for index, gradient in enumerate(gradients)
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Chain the parameters; the result equals ``value``."""
        for layer in self.layers:
            self._device.call()
            value = layer(value)
        return value


class Update(torch.optim.Optimizer):
    """Subtracts gradients in the one step for which `learning` is set.

    All other updates would run on the device.
    """

    is_elementwise = True
    #: Of the class, for the decoupled schedule makes an instance of a subclass.
    learning = False

    def __init__(self, parameters: object) -> None:
        """Take the parameters."""
        super().__init__(parameters, {})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """See the class."""
        if not Update.learning:
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)
