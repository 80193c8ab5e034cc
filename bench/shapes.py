"""Parameter shapes of published networks, in the order of the forward pass."""

from collections.abc import Sequence
from math import prod

from aiacc.planning.models import MODELS
from aiacc.planning.models.layers import Parameter, Shape

__all__ = ["Shape", "elements", "resnet50", "shapes_of"]


def resnet50() -> list[tuple[str, Shape]]:
    """Name and shape of ResNet-50's 161 parameters: 25,557,032 elements."""
    return shapes_of(MODELS["resnet50"].parameters())


def shapes_of(parameters: Sequence[Parameter]) -> list[tuple[str, Shape]]:
    """Name and shape of each."""
    return [(parameter.name, parameter.shape) for parameter in parameters]


def elements(shapes: list[tuple[str, Shape]]) -> int:
    """Number of elements in all of ``shapes``."""
    return sum(prod(shape) for _, shape in shapes)
