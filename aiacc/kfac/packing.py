"""Factors as flat memory: of a symmetric matrix the upper triangle, in pieces. Pure.

A factor of d x d is d (d + 1) / 2 elements, so ResNet-50's take 62,348,671 (A) and 14,618,356 (G).
A stack of matrices is one after the other, a diagonal itself.

A small triangle is gathered row by row, by indices that are kept. Indices of a large one would be
twice as long as itself, and its rows one by one are many. So it is cut: squares of `PANEL` on the
diagonal, whose triangles come first, and what lies right of each, which is copied as it is.

On a GPU kernels of the core do the same (`kernels.py`), where it has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from aiacc.kfac.costs import packed_elements
from aiacc.kfac.kernels import Entry, queue

#: Rows of a square on the diagonal, also in csrc/kernels/gpu/optim/factor_packing_body.h.
PANEL = 128
#: Dimension up to which a triangle is not cut.
LEAST = 2 * PANEL


def packed_size(shape: Sequence[int]) -> int:
    """Elements of a factor of this shape: see `rows.factor_shapes`."""
    if len(shape) == 1:
        return shape[0]
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"factor of shape {tuple(shape)} (expected d, d x d, or n x d x d)")
    return prod(shape[:-2]) * packed_elements(shape[-1])


def pack(factors: Sequence[Tensor], flat: Tensor) -> None:
    """Write the triangles of factors one behind the other.

    Args:
        factors: Of any shapes that `packed_size` knows; only upper triangles are read.
        flat: As many elements as they have, contiguous, of their dtype.

    Raises:
        ValueError: ``flat`` has another number of elements.
    """
    for factor, part, *_ in queue("pack", _entries(factors, flat)):
        if factor.dim() == 1:
            part.copy_(factor)
            continue
        squares, panels = _pieces(factor, part)
        for blocks, packed in squares:
            upper, _ = _indices(blocks.shape[-1], blocks.device)
            torch.index_select(blocks.flatten(1), 1, upper, out=packed)
        for right, _, packed in panels:
            packed.copy_(right)


def unpack(flat: Tensor, factors: Sequence[Tensor]) -> None:
    """Write both triangles of factors from what `pack` has made.

    Args:
        flat: As many elements as the factors have, contiguous.
        factors: Memory for the result, overwritten.

    Raises:
        ValueError: ``flat`` has another number of elements.
    """
    for factor, part, *_ in queue("unpack", _entries(factors, flat)):
        if factor.dim() == 1:
            factor.copy_(part)
            continue
        squares, panels = _pieces(factor, part)
        for blocks, packed in squares:
            _, full = _indices(blocks.shape[-1], blocks.device)
            blocks.copy_(torch.index_select(packed, 1, full).view(blocks.shape))
        for right, below, packed in panels:
            right.copy_(packed)
            below.copy_(packed.t())


def average_packed(entries: Sequence[Entry]) -> None:
    """Let packed factors enter running means: kept * factor + (1 - kept) * scale * packed.

    On a GPU in one pass for all of them: of each mean the upper triangle is read.
    """
    for mean, packed, scale, kept in queue("average", entries):
        found = torch.empty_like(mean) if kept else mean
        unpack(packed, [found])
        found *= scale
        if kept:
            mean.lerp_(found, 1 - kept)


def _entries(factors: Sequence[Tensor], flat: Tensor) -> list[Entry]:
    sizes = [packed_size(factor.shape) for factor in factors]
    if flat.dim() != 1 or flat.numel() != sum(sizes):
        raise ValueError(
            f"flat memory of shape {tuple(flat.shape)} for {len(sizes)} factors (expected one axis "
            f"of {sum(sizes)} elements)"
        )
    return [Entry(*pair) for pair in zip(factors, torch.split(flat, sizes), strict=True)]


def _pieces(
    factor: Tensor, packed: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor, Tensor]]]:
    """Views of a factor and of where each is packed.

    Returns:
        Squares on the diagonal, n x size x size, with n x packed elements; and what lies right of a
        square, what is below it, and where the former is packed.
    """
    dim = factor.shape[-1]
    if dim <= LEAST:
        matrices = factor if factor.dim() == 3 else factor.unsqueeze(0)
        return [(matrices, packed.view(len(matrices), -1))], []
    squares, panels = [], []
    matrices = factor if factor.dim() == 3 else factor.unsqueeze(0)
    for matrix, part in zip(matrices, packed.view(len(matrices), -1), strict=True):
        count, rest = divmod(dim, PANEL)
        inner = dim - rest
        diagonal = matrix[:inner, :inner].view(count, PANEL, count, PANEL).diagonal(0, 0, 2)
        at = count * packed_elements(PANEL)
        squares.append((diagonal.movedim(-1, 0), part[:at].view(count, -1)))
        if rest:
            end = at + packed_elements(rest)
            squares.append((matrix[None, inner:, inner:], part[at:end].view(1, -1)))
            at = end
        for start in range(0, inner, PANEL):
            stop = start + PANEL
            end = at + PANEL * (dim - stop)
            right, below = matrix[start:stop, stop:], matrix[stop:, start:stop]
            panels.append((right, below, part[at:end].view(PANEL, -1)))
            at = end
    return squares, [panel for panel in panels if panel[0].numel()]


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
