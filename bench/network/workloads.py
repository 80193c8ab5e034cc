"""Training steps of published networks: sizes of the gradients, and when they come. Pure.

The shapes are those of the networks. The times are modelled, not measured: a multiply-add is two
operations, the backward pass costs twice the forward pass, and a device does DEVICE_FLOPS.
"""

from dataclasses import dataclass, replace

from aiacc.planning.models import MODELS
from aiacc.planning.models.bert import bert
from bench.shapes import Shape, elements

#: Operations per second of the modelled device: about half the fp32 peak of an NVIDIA V100, with
#: which ResNet-50 takes 196 ms for a batch of 64.
DEVICE_FLOPS = 8e12

_TOKENS = 128
#: Titles and batches.
WORKLOADS = {
    "resnet50": ("ResNet-50, batch of 64", 64),
    "vgg16": ("VGG-16, batch of 64", 64),
    "bert-base": (f"BERT-base, batch of 32 x {_TOKENS} tokens", 32),
    "densenet201": ("DenseNet-201, batch of 32", 32),
}


@dataclass(frozen=True)
class Workload:
    """One training step.

    Attributes:
        name: As on the command line.
        title: As in tables.
        shapes: Parameters in the order of the forward pass.
        multiply_adds: Of the forward pass of one sample, by parameter.
        batch: Samples per step and rank.
        device_flops: Operations per second of the device.
    """

    name: str
    title: str
    shapes: list[tuple[str, Shape]]
    multiply_adds: list[int]
    batch: int
    device_flops: float = DEVICE_FLOPS

    @property
    def bytes(self) -> int:
        """Bytes of all fp32 gradients."""
        return 4 * elements(self.shapes)

    @property
    def forward_s(self) -> float:
        """Seconds of the forward pass."""
        return sum(self.layers_s)

    @property
    def layers_s(self) -> list[float]:
        """Seconds of the forward pass, by parameter."""
        return [2 * each * self.batch / self.device_flops for each in self.multiply_adds]

    @property
    def backward_s(self) -> list[float]:
        """Seconds of the backward pass until each gradient is there, from the beginning of it."""
        times, total = [0.0] * len(self.multiply_adds), 0.0
        for index in reversed(range(len(times))):
            total += 4 * self.multiply_adds[index] * self.batch / self.device_flops
            times[index] = total
        return times

    @property
    def compute_s(self) -> float:
        """Seconds of both passes."""
        return self.forward_s + max(self.backward_s)

    def lasting(self, compute_s: float) -> "Workload":
        """The same step on a device that computes it in so many seconds."""
        return replace(self, device_flops=self.device_flops * self.compute_s / compute_s)


def workload(name: str) -> Workload:
    """The workload of that name, one of WORKLOADS."""
    title, batch = WORKLOADS[name]
    bert_base = name == "bert-base"
    parameters = bert(12, 768, _TOKENS, words=False) if bert_base else MODELS[name].parameters()
    shapes = [(parameter.name, parameter.shape) for parameter in parameters]
    work = [parameter.multiply_adds for parameter in parameters]
    return Workload(name, title, shapes, work, batch)
