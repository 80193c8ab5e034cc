"""Factors as flat memory: a symmetric matrix is its upper triangle, row by row. Pure.

A factor of d x d is d (d + 1) / 2 elements, so ResNet-50's take 62,348,671 (A) and 14,618,356 (G).
A stack of matrices is one after the other, a diagonal itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from aiacc.kfac.costs import packed_elements


def packed_size(shape: Sequence[int]) -> int:
    """Elements of a factor of this shape: see `rows.factor_shapes`."""
    if len(shape) == 1:
        return shape[0]
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"factor of shape {tuple(shape)} (expected d, d x d, or n x d x d)")
    return prod(shape[:-2]) * packed_elements(shape[-1])


def pack(factors: Sequence[Tensor], flat: Tensor) -> None:
    """Write upper triangles one behind the other.

    Args:
        factors: Of any shapes that `packed_size` knows; only upper triangles are read.
        flat: As many elements as they have, contiguous, of their dtype.

    Raises:
        ValueError: ``flat`` has another number of elements.
    """
    for factor, part in zip(factors, _parts(factors, flat), strict=True):
        if factor.dim() == 1:
            part.copy_(factor)
            continue
        dim = factor.shape[-1]
        upper, _ = _indices(dim, factor.device)
        matrices = factor.reshape(-1, dim * dim)
        for matrix, row in zip(matrices, part.view(len(matrices), -1), strict=True):
            torch.index_select(matrix, 0, upper, out=row)


def unpack(flat: Tensor, factors: Sequence[Tensor]) -> None:
    """Write both triangles of ``factors`` from what `pack` has made.

    Args:
        flat: As many elements as the factors have, contiguous.
        factors: Contiguous memory for the result, overwritten.

    Raises:
        ValueError: ``flat`` has another number of elements.
    """
    for factor, part in zip(factors, _parts(factors, flat), strict=True):
        if factor.dim() == 1:
            factor.copy_(part)
            continue
        dim = factor.shape[-1]
        _, full = _indices(dim, factor.device)
        matrices = factor.view(-1, dim * dim)
        for matrix, row in zip(matrices, part.view(len(matrices), -1), strict=True):
            torch.index_select(row, 0, full, out=matrix)


def _parts(factors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    sizes = [packed_size(factor.shape) for factor in factors]
    if flat.dim() != 1 or flat.numel() != sum(sizes):
        raise ValueError(
            f"flat memory of shape {tuple(flat.shape)} for {len(sizes)} factors (expected one axis "
            f"of {sum(sizes)} elements)"
        )
    return list(torch.split(flat, sizes))


@lru_cache(maxsize=256)
def _indices(dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each packed element is in a matrix, and where each element of a matrix is packed."""
    rows, columns = torch.triu_indices(dim, dim, device=device)
    upper = rows * dim + columns
    full = torch.empty(dim, dim, dtype=torch.long, device=device)
    order = torch.arange(len(upper), device=device)
    full[rows, columns] = order
    full[columns, rows] = order
    return upper, full.view(-1)
