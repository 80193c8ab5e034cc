"""Parameter shapes of ResNet-50, and what workers do with shapes."""

from collections.abc import Iterable
from math import prod

import torch

from aiacc.planning.models import MODELS

Shape = tuple[int, ...]


def resnet50() -> list[tuple[str, Shape]]:
    """Name and shape of ResNet-50's 161 parameters, in the order of the forward pass."""
    return [(one.name, tuple(one.shape)) for one in MODELS["resnet50"].parameters()]


def elements(shapes: list[tuple[str, Shape]]) -> int:
    """Number of elements in all of ``shapes``."""
    return sum(prod(shape) for _, shape in shapes)


def parameters(shapes: Iterable[Shape], device: str = "cpu") -> list[torch.nn.Parameter]:
    """Parameters with gradients, both by chance."""
    made = []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.randn(shape, device=device) * 0.05)
        parameter.grad = torch.randn(shape, device=device) * 1e-3
        made.append(parameter)
    return made
