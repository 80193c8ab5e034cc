"""Steps of optimizers on a GPU, as Python calls them, and as CUDA graphs: the GPU alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from aiacc.optim import LAMB, LARS
from bench.gpu.works import Work, copy, graph, measured, tables
from bench.shapes import Shape, parameters, resnet50

__all__ = ["CELLS", "measure", "tables"]

_SETS: dict[str, tuple[str, list[Shape]]] = {
    "resnet50": ("161 parameters of ResNet-50", [shape for _, shape in resnet50()]),
    "large": ("64 matrices of 16 MiB", [(2048, 2048)] * 64),
}
CELLS = tuple(_SETS)
_SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
_GRAPH: dict[str, Any] = {"capturable": True}

#: Bytes that are read and written of an element in a step of each kind: with a ratio, without one.
#: LARS: norms of weights and gradient; then those and the momentum, and two of them written.
#: LAMB: all arrays, of which the means are written; then the updates anew, and weights.
_BYTES = {
    "LARS": (8 + 12 + 8, 12 + 8),
    "LAMB": (16 + 12 + 8 + 4, 16 + 12),
    "torch's SGD": (12 + 8, 12 + 8),
    "torch's AdamW": (16 + 12, 16 + 12),
}
#: Kind and way; the optimizer; peers, which need no norms.
_CONTENDERS: dict[tuple[str, str], tuple[Callable[..., torch.optim.Optimizer], tuple[str, ...]]] = {
    ("LARS", "kernels"): (partial(LARS, fused=True, **_SGD), ("torch's SGD, fused",)),
    ("LARS", "foreach"): (partial(LARS, foreach=True, **_SGD), ("torch's SGD, fused",)),
    ("LAMB", "kernels"): (partial(LAMB, fused=True, **_GRAPH), ("torch's AdamW, fused",)),
    ("LAMB", "foreach"): (partial(LAMB, foreach=True, **_GRAPH), ("torch's AdamW, fused",)),
    ("torch's SGD", "fused"): (partial(torch.optim.SGD, fused=True, **_SGD), ()),
    ("torch's AdamW", "fused"): (partial(torch.optim.AdamW, fused=True, **_GRAPH), ()),
}


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of a step of each contender."""
    title, shapes = _SETS[cell]
    works = [copy()]
    for (kind, way), (make, peers) in _CONTENDERS.items():
        step, moved = make(parameters(shapes, "cuda")).step, _moved(kind, shapes)
        works.append(Work(f"{kind}, {way}", step, moved, peers))
        peers = tuple(f"{peer}, graph" for peer in peers)
        works.append(Work(f"{kind}, {way}, graph", graph(step), moved, peers))
    return measured(title, works, rounds)


def _moved(kind: str, shapes: list[Shape]) -> int:
    """Bytes of a step if no cache holds an array between two passes."""
    return sum(_BYTES[kind][len(shape) < 2] * math.prod(shape) for shape in shapes)
