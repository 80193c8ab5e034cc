"""Block codes on one thread against a copy of the same memory: encoding, decoding, adding."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from bench.native import MICRO, arguments, built
from bench.record import Run, samples
from bench.tables import spread, table
from bench.turns import Contender, gathered, nothing, of_callers, take_turns

COUNT = 25_000_000
#: Number of the format, with a residual, by chance.
_FORMATS = {
    "int8": (0, False, False),
    "int8_residual": (0, True, False),
    "int8_stochastic": (0, False, True),
    "int4": (1, False, False),
    "fp8": (2, False, False),
}
CELLS = tuple(_FORMATS)
_WORKS = ("copy", "encode", "decode", "decode and add")
_ROUNDS = 15


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each work, in turn."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    form, keeps, by_chance = _FORMATS[cell]
    library = ctypes.CDLL(str(built(MICRO / "libcodes_bench.so")))
    library.bench_encoded_bytes.restype = ctypes.c_size_t
    size = library.bench_encoded_bytes(*arguments(COUNT, form))
    given, out, wire = torch.rand(COUNT) * 2 - 1, torch.zeros(COUNT), torch.zeros(size).byte()
    residual = torch.zeros(COUNT) if keeps else None
    encode = arguments(wire, given, residual, COUNT, form, int(by_chance))
    decode = arguments(out, wire, COUNT, form)

    def check() -> None:
        # The largest number is nearly 1: half of a step of int4 and of fp8 is less than this.
        if (out - given).abs().max() > 1 / 13:
            raise AssertionError("what was decoded is not near")

    def fresh() -> None:
        if residual is not None:
            residual.zero_()

    works = (
        lambda: out.copy_(given),
        lambda: library.bench_encode(*encode),
        lambda: library.bench_decode(*decode),
        lambda: library.bench_decode_add(*decode),
    )
    contenders = [Contender(name, run, fresh) for name, run in zip(_WORKS, works, strict=True)]
    for prove in (*works[1:3], check):
        prove()
    spans = take_turns(contenders, rounds or _ROUNDS, nothing, warm_up=1)
    title = cell.replace("_", ", ")
    return {"title": title, "unit": "s", **gathered([[spans]], of_callers)}


def tables(runs: Sequence[Run]) -> str:
    """A line for each format, and what is left of a copy's bandwidth there and back."""
    lines = []
    for run in runs:
        copy, encode, decode = (median(samples(run, work)) for work in _WORKS[:3])
        kept = f"{copy / (encode + decode):.2f}"
        lines.append([run["title"], *(spread(run, work) for work in _WORKS), kept])
    head = ["code", *_WORKS, "copy / (encode + decode)"]
    return f"{COUNT:,} float32, blocks of 256.\n\n{table(head, lines)}"
