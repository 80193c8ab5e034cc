"""What takes the place of an inverse: how it is computed, travels, and preconditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from aiacc.kfac.inverses import decompose, invert
from aiacc.kfac.packing import pack, unpack
from aiacc.kfac.precondition import by_eigenvectors, by_inverses
from aiacc.torch.kfac.factor import Factor


class Solver(Protocol):
    """A way to solve with damped factors, by one tensor of each: `Factor.inverse`.

    Attributes:
        damps: Whether the tensor contains the damping; else that of each step counts.
        square: Whether all of it travels, and not a triangle; see `StageCosts`.
    """

    damps: bool
    square: bool

    def size(self, factor: Factor) -> int:
        """Elements of it that travel."""
        ...

    def identity(self, factor: Factor) -> Tensor:
        """Of a factor to which nothing has come, in new memory."""
        ...

    def compute(self, means: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Tensor | None]:
        """Of each factor, in new memory; None: there is none, keep the last.

        Args:
            means: d x d, n x d x d or the diagonal; those of equal dimension are computed together.
            dampings: Of each, with `damps`; else they count nothing.
        """
        ...

    def pack(self, computed: Sequence[Tensor], flat: Tensor) -> None:
        """Write them one behind the other into as many elements as `size` says of all."""
        ...

    def unpack(self, flat: Tensor, factors: Sequence[Factor]) -> list[Tensor]:
        """What was packed of these factors, in new memory: the same bits on all ranks."""
        ...

    def precondition(self, gradient: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
        """The gradient, out x in or n x out x in, multiplied by both inverses, in new memory.

        Args:
            gradient: Of a layer.
            a: Of its factor A.
            g: Of its factor G.
            damping: Of this step, without `damps`; else it counts nothing.
        """
        ...


class Cholesky:
    """Inverses of the damped factors."""

    damps, square = True, False

    def size(self, factor: Factor) -> int:
        """See Solver."""
        return factor.packed

    def identity(self, factor: Factor) -> Tensor:
        """See Solver: no gradient is changed."""
        return factor.identity()

    def compute(self, means: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Tensor | None]:
        """See Solver."""
        return invert(means, dampings)

    def pack(self, computed: Sequence[Tensor], flat: Tensor) -> None:
        """See Solver."""
        pack(computed, flat)

    def unpack(self, flat: Tensor, factors: Sequence[Factor]) -> list[Tensor]:
        """See Solver."""
        inverses = [factor.empty() for factor in factors]
        unpack(flat, inverses)
        return inverses

    def precondition(self, gradient: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
        """See Solver."""
        del damping
        return by_inverses(gradient, a, g)


class Eigh:
    """Eigenvectors, as columns, above a row of their eigenvalues; a diagonal is itself.

    Pauloski et al., "Convolutional Neural Network Training with Distributed K-FAC", SC 2020 (arXiv
    2007.00784).
    """

    damps, square = False, True

    def size(self, factor: Factor) -> int:
        """See Solver."""
        return _shape(factor).numel()

    def identity(self, factor: Factor) -> Tensor:
        """See Solver: eigenvalues of 1. Where A and G have them, gradient / (1 + damping)."""
        one = factor.identity()
        return one if one.dim() == 1 else _joined(one.new_ones(one.shape[:-1]), one)

    def compute(self, means: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Tensor | None]:
        """See Solver."""
        del dampings
        return [None if pair is None else _joined(*pair) for pair in decompose(means)]

    def pack(self, computed: Sequence[Tensor], flat: Tensor) -> None:
        """See Solver."""
        torch.cat([one.reshape(-1) for one in computed], out=flat)

    def unpack(self, flat: Tensor, factors: Sequence[Factor]) -> list[Tensor]:
        """See Solver."""
        parts = torch.split(flat, [self.size(factor) for factor in factors])
        return [
            part.view(_shape(factor)).clone() for factor, part in zip(factors, parts, strict=True)
        ]

    def precondition(self, gradient: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
        """See Solver."""
        return by_eigenvectors(gradient, _apart(a), _apart(g), damping)


CHOLESKY, EIGH = "cholesky", "eigh"
SOLVERS: dict[str, Solver] = {CHOLESKY: Cholesky(), EIGH: Eigh()}


def _shape(factor: Factor) -> torch.Size:
    if len(factor.shape) == 1:
        return torch.Size(factor.shape)
    return torch.Size((*factor.shape[:-2], factor.shape[-1] + 1, factor.shape[-1]))


def _joined(values: Tensor, vectors: Tensor) -> Tensor:
    """Of what `decompose` gives of a factor."""
    return torch.cat([vectors, values.unsqueeze(-2)], -2) if vectors.numel() else values


def _apart(joined: Tensor) -> tuple[Tensor, Tensor]:
    """What was joined."""
    if joined.dim() == 1:
        return joined, joined.new_empty(0)
    return joined[..., -1, :], joined[..., :-1, :]
