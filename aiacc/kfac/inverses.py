"""Inverses of damped factors, and eigenvectors. Pure: no factor is changed.

The damping is split between A and G by pi = sqrt((tr A / dim A) / (tr G / dim G)), so that
(A + sqrt(damping) pi I) (x) (G + sqrt(damping) / pi I) is near A (x) G + damping I: Martens,
Grosse, ICML 2015, section 6.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

_NotConverged = torch.linalg.LinAlgError  # type: ignore[attr-defined]
#: By which the damping of a factor that is not positive definite is multiplied.
RETRY = 10.0
SPLITS = ("pi", "plain")


def split_damping(
    a: Tensor, g: Tensor, damping: float | Tensor, split: str = "pi"
) -> tuple[Tensor, Tensor]:
    """Damping of A and of G, which the host does not wait for.

    Args:
        a: Factor A, or the diagonal of it; a stack has a damping for each.
        g: Factor G.
        damping: Of their product.
        split: "pi", or "plain": ``damping`` for both.

    Raises:
        ValueError: Of a split that is not known.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} (expected one of {', '.join(SPLITS)})")
    mean_a, mean_g = _mean_eigenvalue(a), _mean_eigenvalue(g)
    both = torch.as_tensor(damping, dtype=g.dtype, device=g.device).expand_as(mean_g)
    if split == "plain":
        return both, both
    pi = (mean_a / mean_g).sqrt()
    # Without inputs or gradients no side has more than the other.
    pi = torch.where((mean_a > 0) & (mean_g > 0) & pi.isfinite() & (pi > 0), pi, 1.0)
    return both.sqrt() * pi, both.sqrt() / pi


def invert(factors: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Tensor | None]:
    """Inverses of ``factor + damping I`` by Cholesky, those of equal dimension together.

    A factor that is not positive definite is tried with `RETRY` times the damping, and then with
    that in float64. The host waits once for each dimension.

    Args:
        factors: d x d, n x d x d or the diagonal, of any dimensions, finite or not.
        dampings: Of each factor: of no axis, or n.

    Returns:
        Of each factor the inverse in new memory, None if it has none that is finite: keep the last.
    """
    found: list[Tensor | None] = [None] * len(factors)
    by_dim = defaultdict(list)
    for number, (factor, damping) in enumerate(zip(factors, dampings, strict=True)):
        if factor.dim() == 1:
            inverse = (factor + damping).reciprocal_()
            found[number] = inverse if bool(inverse.isfinite().all()) else None
        else:
            by_dim[factor.shape[-1], factor.dtype, factor.device].append(number)
    for numbers in by_dim.values():
        inverses, good = _inverted(
            [matrix for number in numbers for matrix in _stack(factors[number])],
            torch.cat([dampings[number].to(factors[number]).reshape(-1) for number in numbers]),
        )
        start = 0
        for number in numbers:
            stop = start + len(_stack(factors[number]))
            if all(good[start:stop]):
                found[number] = inverses[start:stop].reshape(factors[number].shape)
            start = stop
    return found


def _stack(factor: Tensor) -> Tensor:
    return factor.reshape(-1, *factor.shape[-2:])


def _inverted(matrices: Sequence[Tensor], dampings: Tensor) -> tuple[Tensor, list[bool]]:
    """Inverses of matrices of equal dimension, and which of them are any."""
    dtype = matrices[0].dtype
    inverses, good = _by_cholesky(torch.stack(list(matrices)), dampings)
    for tried in (dtype, torch.float64):
        bad = [number for number, success in enumerate(good) if not success]
        if not bad:
            break
        again = torch.stack([matrices[number].to(tried) for number in bad])
        result, successes = _by_cholesky(again, dampings[bad].to(tried) * RETRY)
        for number, inverse, success in zip(bad, result, successes, strict=True):
            inverses[number] = inverse
            good[number] = success
    return inverses, good


def _by_cholesky(stack: Tensor, dampings: Tensor) -> tuple[Tensor, list[bool]]:
    """The same of a stack, which is overwritten."""
    stack.diagonal(dim1=-2, dim2=-1).add_(dampings.unsqueeze(-1))
    lower, info = torch.linalg.cholesky_ex(stack)
    good = info == 0
    # On a CPU a zero there is an error for the whole stack.
    lower.diagonal(dim1=-2, dim2=-1).masked_fill_(~good.unsqueeze(-1), 1.0)
    inverses = torch.cholesky_inverse(lower)
    # What is none in float32 is none in float64 either.
    finite = (inverses.float() if inverses.dtype == torch.float64 else inverses).isfinite()
    return inverses, (good & finite.flatten(1).all(1)).tolist()


def decompose(factors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor] | None]:
    """Eigenvalues, none negative, and eigenvectors as columns; those of equal dimension together.

    Args:
        factors: d x d, n x d x d, or a diagonal, whose values these are and whose vectors have no
            elements.

    Returns:
        Of each factor values and vectors, None if it or they are not finite, or do not converge.
    """
    found: list[tuple[Tensor, Tensor] | None] = [None] * len(factors)
    by_dim = defaultdict(list)
    for number, factor in enumerate(factors):
        if not bool(factor.isfinite().all()):
            continue
        if factor.dim() == 1:
            found[number] = (factor.clamp(min=0), factor.new_empty(0))
        else:
            by_dim[factor.shape[-1], factor.dtype, factor.device].append(number)
    for numbers in by_dim.values():
        stacks = [_stack(factors[number]) for number in numbers]
        sizes = [len(part) for part in stacks]
        try:
            values, vectors = torch.linalg.eigh(torch.cat(stacks))
        except _NotConverged:
            for number in numbers:
                found[number] = _decomposed_alone(factors[number])
            continue
        for number, some, their in zip(
            numbers, torch.split(values, sizes), torch.split(vectors, sizes), strict=True
        ):
            shape = factors[number].shape
            found[number] = (some.reshape(shape[:-1]).clamp(min=0), their.reshape(shape))
    # Values of finite factors may be too large for their dtype.
    return [one if one is not None and bool(one[0].isfinite().all()) else None for one in found]


def _decomposed_alone(factor: Tensor) -> tuple[Tensor, Tensor] | None:
    try:
        values, vectors = torch.linalg.eigh(factor.double())
    except _NotConverged:
        return None
    return values.clamp(min=0).to(factor.dtype), vectors.to(factor.dtype)


def _mean_eigenvalue(factor: Tensor) -> Tensor:
    return (factor if factor.dim() == 1 else factor.diagonal(dim1=-2, dim2=-1)).mean(-1)
