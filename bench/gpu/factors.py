"""Packed factors of K-FAC on a GPU against copies and torch's indexing; products of their rows."""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack
from aiacc.planning.models import MODELS
from aiacc.planning.models.kronecker import layers_of
from bench.gpu.kernels import captured, copy, moved, timed, us_per_byte

#: Dimensions of the float32 factors of each set.
SETS = {
    "108 factors of ResNet-50": [
        dim
        for layer in layers_of(MODELS["resnet50"].parameters())
        for dim in (layer.a_dim, layer.g_dim)
    ],
    "one factor of 4608": [4608],
}
#: Rows, and columns, of a batch of 32 in two stages of ResNet-50.
PRODUCTS = ((32 * 14 * 14, 2304), (32 * 7 * 7, 4608))
#: Share of the bandwidth of a copy.
GOAL = 0.85
WORKS = ("pack", "unpack", "average")


def measure() -> list[dict[str, Any]]:
    """Microseconds of each way to pack and unpack each set, by sample, and what became of its goal.

    Kernels are measured as a program calls them, and as a CUDA graph, which is the GPU alone.
    """
    rows = [copy()]
    for name, dims in SETS.items():
        for work, run in _calls(dims):
            read, written = floor(work.partition(",")[0], dims)
            row = {"set": name, "bytes_read": read, "bytes_written": written}
            run()
            rows.append(row | {"work": work, "us": timed(run)})
            if work.endswith("kernels"):
                graph = captured(run)
                rows.append(row | {"work": f"{work}, graph", "us": timed(graph.replay)})
    return judge([*rows, *_products()])


def floor(work: str, dims: list[int]) -> tuple[int, int]:
    """Bytes that have to be read and written: triangles, of a mean that is read as well."""
    half = 4 * sum(packed_size((dim, dim)) for dim in dims)
    whole = 4 * sum(dim * dim for dim in dims)
    return {"pack": (half, half), "unpack": (half, whole), "average": (2 * half, whole)}[work]


def _calls(dims: list[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    factors = [torch.zeros(dim, dim, device="cuda") for dim in dims]
    sizes = [packed_size(factor.shape) for factor in factors]
    flat = torch.zeros(sum(sizes), device="cuda")
    parts = flat.split(sizes)
    entries = [Entry(*pair, 0.5, 0.95) for pair in zip(factors, parts, strict=True)]
    yield "pack, kernels", lambda: pack(factors, flat)
    yield "unpack, kernels", lambda: unpack(flat, factors)
    yield "average, kernels", lambda: average_packed(entries)
    at = {dim: tuple(torch.triu_indices(dim, dim, device="cuda")) for dim in set(dims)}
    triples = [
        (factor, part, *at[len(factor)]) for factor, part in zip(factors, parts, strict=True)
    ]

    def packed_by_indices() -> None:
        for factor, part, row, column in triples:
            part.copy_(factor[row, column])

    def unpacked_by_indices() -> None:
        for factor, part, row, column in triples:
            factor[row, column] = part
            factor[column, row] = part

    yield "pack, torch's indexing", packed_by_indices
    yield "unpack, torch's indexing", unpacked_by_indices


def _products() -> Iterator[dict[str, Any]]:
    """Whether panels, which save three of eight operations, pay on this GPU."""
    for number, width in PRODUCTS:
        rows = torch.randn(number, width, device="cuda")
        total = torch.zeros(width, width, device="cuda")
        row = {"bytes_read": 4 * number * width, "bytes_written": 4 * width * width}
        row["set"] = f"{number} rows of {width}"

        def whole(rows: torch.Tensor = rows, total: torch.Tensor = total) -> None:
            total.addmm_(rows.t(), rows)

        def panels(rows: torch.Tensor = rows, total: torch.Tensor = total) -> None:
            step = len(total) // 4
            for start in range(0, len(total), step):
                stop = start + step
                total[start:stop, start:].addmm_(rows[:, start:stop].t(), rows[:, start:])

        for work, run in (("product", whole), ("product, four panels", panels)):
            yield row | {"work": work, "us": timed(run)}


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with goals: kernels, without Python, have so much of the bandwidth of the copy."""
    per_byte = us_per_byte(rows)
    judged = []
    for row in rows:
        goals = []
        if row["work"].endswith("kernels, graph"):
            ratio = per_byte * moved(row) / median(row["us"])
            goal = {"against": "the bandwidth of a copy", "ratio": ratio, "at_least": GOAL}
            goals.append(goal | {"met": ratio >= GOAL})
        judged.append(row | {"goals": goals})
    return judged
