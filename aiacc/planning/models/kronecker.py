"""Kronecker factors of the layers of a network, from its table of parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from aiacc.planning.models.layers import Parameter


@dataclass(frozen=True)
class Layer:
    """A layer whose gradient K-FAC preconditions: out x in, with a column for the bias."""

    name: str
    #: Of A, the covariance of its inputs: a patch of the image and 1 for the bias.
    a_dim: int
    #: Of G, the covariance of its gradients: the output features.
    g_dim: int
    #: Rows that one sample adds to either covariance: pixels, or tokens.
    rows: int
    #: Names of its parameters.
    parameters: tuple[str, ...]

    @property
    def a_work(self) -> int:
        """Multiply-adds of A for one sample."""
        return self.rows * self.a_dim**2

    @property
    def g_work(self) -> int:
        """Multiply-adds of G for one sample."""
        return self.rows * self.g_dim**2


def layers_of(parameters: Sequence[Parameter]) -> list[Layer]:
    """Convolutions and linear layers in the order of the forward pass.

    Those are the parameters of two or four dimensions that are multiplied with; embeddings, which
    are looked up, and normalisations have no factors. A bias is the parameter behind its weight.
    """
    found = []
    for number, parameter in enumerate(parameters):
        if len(parameter.shape) not in (2, 4) or not parameter.multiply_adds:
            continue
        name = parameter.name.removesuffix(".weight")
        behind = parameters[number + 1].name if number + 1 < len(parameters) else ""
        has_bias = behind == f"{name}.bias"
        found.append(
            Layer(
                name,
                prod(parameter.shape[1:]) + has_bias,
                parameter.shape[0],
                parameter.multiply_adds // parameter.elements,
                (parameter.name, behind) if has_bias else (parameter.name,),
            )
        )
    return found
