"""Steps of optimizers on a GPU against the bytes that they have to move, with goals."""

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from aiacc.optim import LAMB, LARS
from bench import shapes
from bench.gpu.kernels import captured, copy, moved, timed, us_per_byte

Shapes = list[tuple[int, ...]]

#: Shapes of the float32 parameters of each set.
SETS: dict[str, Shapes] = {
    "161 parameters of ResNet-50": [tuple(shape) for _, shape in shapes.resnet50()],
    "64 matrices of 16 MiB": [(2048, 2048)] * 64,
}
_SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}

#: Bytes that are read and written of an element in a step of each kind: with a ratio, without one.
#: LARS: norms of weights and gradient; then those and the momentum, and two of them written.
#: LAMB: all arrays, of which the means are written; then the updates anew, and weights.
BYTES = {
    "LARS": ((8 + 12, 8), (12, 8)),
    "LAMB": ((16 + 12, 8 + 4), (16, 12)),
    "SGD": ((12, 8), (12, 8)),
    "AdamW": ((16, 12), (16, 12)),
}

#: Kind, and the optimizer.
CONTENDERS: dict[str, tuple[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = {
    "LARS, kernels": ("LARS", lambda params: LARS(params, fused=True, **_SGD)),
    "LARS, foreach": ("LARS", lambda params: LARS(params, foreach=True, **_SGD)),
    "LAMB, kernels": ("LAMB", lambda params: LAMB(params, fused=True, capturable=True)),
    "LAMB, foreach": ("LAMB", lambda params: LAMB(params, foreach=True, capturable=True)),
    "torch AdamW, fused": (
        "AdamW",
        lambda params: torch.optim.AdamW(params, fused=True, capturable=True),
    ),
    "torch SGD, fused": ("SGD", lambda params: torch.optim.SGD(params, fused=True, **_SGD)),
}


def measure() -> list[dict[str, Any]]:
    """Microseconds of a step of each contender by sample, and what became of its goal.

    A step is measured twice: as a program calls it, when Python may be slower than the GPU, and as
    a CUDA graph, which is the GPU alone.
    """
    rows = [copy()]
    for name, given in SETS.items():
        for work, (kind, make) in CONTENDERS.items():
            optimizer = make(_parameters(given))
            read, written = floor(kind, given)
            row = {"set": name, "bytes_read": read, "bytes_written": written}
            optimizer.step()
            rows.append(row | {"work": work, "us": timed(optimizer.step)})
            graph = captured(optimizer.step)
            rows.append(row | {"work": f"{work}, graph", "us": timed(graph.replay)})
    return judge(rows)


def floor(kind: str, given: Shapes) -> tuple[int, int]:
    """Bytes that a step has to read and to write if no cache holds an array between two passes."""
    read = written = 0
    for shape in given:
        of_element = BYTES[kind][0 if len(shape) > 1 else 1]
        read += of_element[0] * math.prod(shape)
        written += of_element[1] * math.prod(shape)
    return read, written


def _parameters(given: Shapes) -> list[torch.Tensor]:
    made: list[torch.Tensor] = []
    for shape in given:
        parameter = torch.nn.Parameter(torch.randn(shape, device="cuda") * 0.05)
        parameter.grad = torch.randn(shape, device="cuda") * 1e-3
        made.append(parameter)
    return made


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with goals: our kernels, without Python, take at most 1.2 times as long as their bytes.

    A byte costs what it costs in the copy among the rows.
    """
    per_byte = us_per_byte(rows)
    judged = []
    for row in rows:
        goals = []
        if row["work"].endswith("kernels, graph"):
            ratio = median(row["us"]) / (per_byte * moved(row))
            goal = {"against": "its bytes in a copy", "ratio": ratio, "at_most": 1.2}
            goals.append(goal | {"met": ratio <= 1.2})
        judged.append(row | {"goals": goals})
    return judged
