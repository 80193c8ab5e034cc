"""Kernels of block codes, and selections against what torch offers."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.gpu.works import Work, call, copy, library, measured, tables
from bench.selection import MODES

__all__ = ["CELLS", "measure", "tables"]

_ELEMENTS = 100_000_000
_DENSE = 4 * _ELEMENTS
#: In the order of their numbers.
_FORMATS = ("int8", "int4", "fp8")
_PAIRS = {"select_0.1": _ELEMENTS // 1000, "select_1": _ELEMENTS // 100}
CELLS = ("blocks", *_PAIRS)
#: Inputs by turns: elements from one to the next.
_INPUTS, _SHIFT = 4, 16 << 10
_TORCH = "torch: abs, topk, gather"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each kernel."""
    torch.manual_seed(0)
    # Of layers of different sizes.
    values = torch.randn(_ELEMENTS + _INPUTS * _SHIFT, device="cuda")
    for layer, part in enumerate(values.chunk(8)):
        part.mul_(2.0**-layer)
    inputs = itertools.cycle([values[at * _SHIFT :][:_ELEMENTS] for at in range(_INPUTS)])
    if cell == "blocks":
        works = [work for form in range(len(_FORMATS)) for work in _blocks(form, inputs)]
        return measured("100 M float32, blocks of 256", [copy(_ELEMENTS), *works], rounds)
    pairs = _PAIRS[cell]
    works = list(_selections(pairs, inputs))
    return measured(f"{pairs:,} of 100 M float32", [copy(_ELEMENTS), *works], rounds)


def _blocks(form: int, inputs: Iterator[torch.Tensor]) -> Iterator[Work]:
    kernels, name = library(), _FORMATS[form]
    kernels.bench_encoded_bytes.restype = ctypes.c_size_t
    coded = kernels.bench_encoded_bytes(ctypes.c_size_t(_ELEMENTS), ctypes.c_size_t(form))
    wire = torch.zeros(coded, device="cuda", dtype=torch.uint8)
    out, residual = (torch.zeros(_ELEMENTS, device="cuda") for _ in range(2))

    def encode(kept: torch.Tensor | None, by_chance: int) -> Callable[[], None]:
        return lambda: call(
            kernels.bench_encode, wire, next(inputs), kept, _ELEMENTS, form, by_chance
        )

    def decode(function: Any) -> Callable[[], None]:
        return lambda: call(function, out, wire, _ELEMENTS, form)

    yield Work(f"encode {name}", encode(None, 0), _DENSE + coded)
    yield Work(f"encode {name}, stochastic", encode(None, 1), _DENSE + coded)
    yield Work(f"encode {name}, feedback", encode(residual, 0), 3 * _DENSE + coded)
    yield Work(f"decode {name}", decode(kernels.bench_decode), _DENSE + coded)
    yield Work(f"decode and add {name}", decode(kernels.bench_decode_add), 2 * _DENSE + coded)


def _selections(pairs: int, inputs: Iterator[torch.Tensor]) -> Iterator[Work]:
    """Alone, with a residual that moves to other memory, and with one in place."""
    for feedback in ("none", "moves", "in place"):
        moved = _DENSE if feedback == "none" else 3 * _DENSE
        peers = (_TORCH,) if feedback == "none" else ()
        run = _selection("tracked", pairs, inputs, feedback)
        yield Work(f"select, tracked, feedback {feedback}", run, moved, peers)
    yield Work("select, cold", _selection("exact", pairs, inputs), _DENSE, (_TORCH,))

    def by_torch() -> torch.Tensor:
        values = next(inputs)
        return values.gather(0, values.abs().topk(pairs, sorted=False).indices)

    yield Work(_TORCH, by_torch, _DENSE)


def _selection(
    mode: str, pairs: int, inputs: Iterator[torch.Tensor], feedback: str = "none"
) -> Callable[[], None]:
    kernels = library()
    kernels.bench_workspace_bytes.restype = kernels.bench_state_bytes.restype = ctypes.c_size_t
    room = kernels.bench_workspace_bytes(ctypes.c_size_t(_ELEMENTS), ctypes.c_size_t(pairs))
    sizes = (8 * pairs, kernels.bench_state_bytes(), room)
    wire, state, workspace = (torch.zeros(n, device="cuda", dtype=torch.uint8) for n in sizes)
    kept: list[torch.Tensor | None] = [None, None]
    if feedback != "none":
        kept = [torch.zeros(_ELEMENTS, device="cuda")] * 2
    if feedback == "moves":
        kept[1] = torch.zeros(_ELEMENTS, device="cuda")
    steps = itertools.count(1)

    def run() -> None:
        step = next(steps)
        residuals = (kept[step % 2], kept[(step + 1) % 2])
        numbers = (_ELEMENTS, pairs, MODES.index(mode), step)
        call(kernels.bench_select, wire, next(inputs), *residuals, *numbers, state, workspace)

    return run
