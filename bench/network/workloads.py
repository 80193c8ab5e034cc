"""Training steps of published networks: sizes of the gradients, and when they come. Pure.

The shapes are those of the networks. The times are modelled, not measured: a multiply-add is two
operations, the backward pass costs twice the forward pass, and a device does DEVICE_FLOPS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from bench.shapes import VGG16_BLOCKS, Shape, bert_base, elements, resnet50, vgg16

#: Operations per second of the modelled device: about half the fp32 peak of an NVIDIA V100, with
#: which ResNet-50 takes 196 ms for a batch of 64.
DEVICE_FLOPS = 8e12

_TOKENS = 128


@dataclass(frozen=True)
class Workload:
    """One training step.

    Attributes:
        name: As on the command line.
        title: As in tables.
        shapes: Parameters in the order of the forward pass.
        multiply_adds: Of the forward pass of one sample, by parameter.
        batch: Samples per step and rank.
    """

    name: str
    title: str
    shapes: list[tuple[str, Shape]]
    multiply_adds: list[int]
    batch: int

    @property
    def bytes(self) -> int:
        """Bytes of all fp32 gradients."""
        return 4 * elements(self.shapes)

    @property
    def forward_s(self) -> float:
        """Seconds of the forward pass."""
        return 2 * sum(self.multiply_adds) * self.batch / DEVICE_FLOPS

    @property
    def backward_s(self) -> list[float]:
        """Seconds of the backward pass until each gradient is there, from the beginning of it."""
        times, total = [0.0] * len(self.multiply_adds), 0.0
        for index in reversed(range(len(times))):
            total += 4 * self.multiply_adds[index] * self.batch / DEVICE_FLOPS
            times[index] = total
        return times


def workload(name: str) -> Workload:
    """The workload of that name; ValueError for another."""
    if name not in _WORKLOADS:
        raise ValueError(f"workload {name!r} (expected one of {', '.join(_WORKLOADS)})")
    return _WORKLOADS[name]()


def names() -> list[str]:
    """Names of all workloads."""
    return list(_WORKLOADS)


def _resnet50() -> Workload:
    shapes = resnet50()
    size, work = 112, []
    for name, shape in shapes:
        if name.startswith("layer") and name.endswith("0.conv1.weight"):
            # The first block of a stage reads what the stage before gives, at its resolution.
            size = 56 if name.startswith("layer1") else size
            work.append(prod(shape) * size**2)
            size = size if name.startswith("layer1") else size // 2
        elif len(shape) == 4:
            work.append(prod(shape) * size**2)
        else:
            work.append(prod(shape) if name == "fc.weight" else 0)
    return Workload("resnet50", "ResNet-50, batch of 64", shapes, work, 64)


def _vgg16() -> Workload:
    shapes, work = vgg16(), []
    for name, shape in shapes:
        block = int(name[5]) if name.startswith("block") else 0
        assert block <= len(VGG16_BLOCKS)
        area = (224 >> (block - 1)) ** 2 if block else 1
        work.append(prod(shape) * area if len(shape) > 1 else 0)
    return Workload("vgg16", "VGG-16, batch of 64", shapes, work, 64)


def _bert_base() -> Workload:
    shapes = bert_base()
    work = [
        prod(shape) * (1 if name.startswith("pooler") else _TOKENS)
        if len(shape) == 2 and not name.startswith("embeddings")
        else 0
        for name, shape in shapes
    ]
    return Workload("bert-base", f"BERT-base, batch of 32 x {_TOKENS} tokens", shapes, work, 32)


_WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "bert-base": _bert_base,
}
