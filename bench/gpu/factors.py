"""Packed factors of K-FAC on a GPU against copies and torch's indexing; products of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack
from aiacc.planning.models import MODELS
from aiacc.planning.models.kronecker import layers_of
from bench.gpu.works import Work, copy, graph, measured, tables

__all__ = ["CELLS", "measure", "tables"]

#: Title, and dimensions of the float32 factors.
_SETS = {
    "resnet50": (
        "108 factors of ResNet-50",
        [
            dim
            for layer in layers_of(MODELS["resnet50"].parameters())
            for dim in (layer.a_dim, layer.g_dim)
        ],
    ),
    "one": ("one factor of 4608", [4608]),
}
#: Rows, and columns, of a batch of 32 in two stages of ResNet-50.
_PRODUCTS = {"product_2304": (32 * 14 * 14, 2304), "product_4608": (32 * 7 * 7, 4608)}
CELLS = (*_SETS, *_PRODUCTS)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each way; of kernels as a program calls them, and as a CUDA graph."""
    if cell in _PRODUCTS:
        number, width = _PRODUCTS[cell]
        works = list(_products(number, width))
        return measured(f"{number:,} rows of {width:,}", [copy(), *works], rounds)
    title, dims = _SETS[cell]
    return measured(title, [copy(), *_packing(dims)], rounds)


def _packing(dims: list[int]) -> Iterator[Work]:
    factors = [torch.zeros(dim, dim, device="cuda") for dim in dims]
    sizes = [packed_size(factor.shape) for factor in factors]
    flat = torch.zeros(sum(sizes), device="cuda")
    parts = torch.split(flat, sizes)
    entries = [Entry(*pair, 0.5, 0.95) for pair in zip(factors, parts, strict=True)]
    at = {dim: tuple(torch.triu_indices(dim, dim, device="cuda")) for dim in set(dims)}
    triples = [(*pair, *at[len(pair[0])]) for pair in zip(factors, parts, strict=True)]

    def packed_by_indices() -> None:
        for factor, part, row, column in triples:
            part.copy_(factor[row, column])

    def unpacked_by_indices() -> None:
        for factor, part, row, column in triples:
            factor[row, column] = part
            factor[column, row] = part

    # Triangles, of a mean that is read as well.
    half, whole = 4 * sum(sizes), 4 * sum(dim * dim for dim in dims)
    kernels: dict[str, tuple[Callable[[], object], int, tuple[str, ...]]] = {
        "pack": (lambda: pack(factors, flat), 2 * half, ("pack, torch's indexing",)),
        "unpack": (lambda: unpack(flat, factors), half + whole, ("unpack, torch's indexing",)),
        "average": (lambda: average_packed(entries), 2 * half + whole, ()),
    }
    for name, (run, moved, peers) in kernels.items():
        yield Work(f"{name}, kernels", run, moved, peers)
        yield Work(f"{name}, kernels, graph", graph(run), moved, peers)
    yield Work("pack, torch's indexing", packed_by_indices, 2 * half)
    yield Work("unpack, torch's indexing", unpacked_by_indices, half + whole)


def _products(number: int, width: int) -> Iterator[Work]:
    """Whether panels, which save three of eight operations, pay on this GPU."""
    rows = torch.randn(number, width, device="cuda")
    total = torch.zeros(width, width, device="cuda")
    step = width // 4

    def panels() -> None:
        for start in range(0, width, step):
            stop = start + step
            total[start:stop, start:].addmm_(rows[:, start:stop].t(), rows[:, start:])

    yield Work("product", lambda: total.addmm_(rows.t(), rows))
    yield Work("product, four panels", panels, over=("product",))
