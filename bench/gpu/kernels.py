"""Kernels that pack tensors for the wire, against the driver's copies and torch's operations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bench.gpu.works import COPY, Work, call, library, measured, tables
from bench.shapes import resnet50

__all__ = ["CELLS", "measure", "tables"]

#: Title, and elements of the float32 tensors.
_SETS = {
    "resnet50": ("161 gradients of ResNet-50", [math.prod(shape) for _, shape in resnet50()]),
    "large": ("64 tensors of 16 MiB", [4 << 20] * 64),
}
CELLS = tuple(_SETS)
#: Numbers of the wire formats of the core, and the bytes of an element.
_WIRES = {"float16": (1, 2), "bfloat16": (2, 2), "float8_e4m3": (3, 1)}
_CAT, _FOREACH = "torch.cat", "foreach copy"
_SCALED, _HALF = "foreach copy and scale", "foreach copy as float16"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each way to pack the set."""
    title, counts = _SETS[cell]
    return measured(title, list(_works(counts)), rounds)


def _works(counts: list[int]) -> Iterator[Work]:
    kernels, total = library(), sum(counts)
    tensors = [torch.zeros(count, device="cuda") for count in counts]
    source, flat = (torch.zeros(total, device="cuda") for _ in range(2))
    half = flat.to(torch.float16)
    views, half_views = list(torch.split(flat, counts)), list(torch.split(half, counts))
    pairs = zip(tensors, views, strict=True)
    rows = [(given.data_ptr(), view.data_ptr(), len(given)) for given, view in pairs]
    segments = torch.from_numpy(np.array(rows, np.int64))
    each = (segments, len(counts))
    whole = torch.tensor([[source.data_ptr(), flat.data_ptr(), total]])
    kept = (whole, source)  # as long as the work

    def pack(wire: int, scaled: int) -> Any:
        return lambda: call(kernels.bench_pack, *each, wire, scaled)

    def scaled_by_torch() -> None:
        torch._foreach_copy_(views, tensors)
        torch._foreach_mul_(views, 0.125)

    yield Work(COPY, lambda: call(kernels.bench_copy, kept[0], 1), 8 * total)
    yield Work("a copy for each", lambda: call(kernels.bench_copy, *each), 8 * total)
    yield Work("pack", pack(0, 0), 8 * total, (_CAT, _FOREACH))
    yield Work("pack, scaled", pack(0, 1), 8 * total, (_SCALED,))
    for name, (wire, size) in _WIRES.items():
        peers = (_HALF,) if name == "float16" else ()
        yield Work(f"pack, scaled, as {name}", pack(wire, 1), (4 + size) * total, peers)
    yield Work(_CAT, lambda: torch.cat(tensors, out=flat), 8 * total)
    yield Work(_FOREACH, lambda: torch._foreach_copy_(views, tensors), 8 * total)
    yield Work(_SCALED, scaled_by_torch, 8 * total)
    yield Work(_HALF, lambda: torch._foreach_copy_(half_views, tensors), 6 * total)
