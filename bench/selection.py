"""Choosing 1 % of a fused buffer on one thread, against what sparsifiers do in torch.

Ours also write the pairs that travel. With residuals every contender adds what it did not send
before, and keeps what it does not send now. The scale of the buffer changes from call to call.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from bench import tables as markdown
from bench.native import MICRO, arguments, built
from bench.record import Run
from bench.turns import Contender, gathered, nothing, of_callers, take_turns

CELLS = ("alone", "residuals")
COUNT, K = 25_000_000, 250_000
#: Our modes, in the order of their numbers.
MODES = ("tracked", "exact", "reference")
_ROUNDS = 7
#: Steps of everybody until a threshold with residuals has settled.
_SETTLED = 30
#: Of the buffers, in turn.
_SCALES = (1.0, 1.25, 0.9, 1.1)
_WORKS = {
    "alone": f"{K:,} of {COUNT:,} float32",
    "residuals": f"{K:,} of {COUNT:,} float32, with residuals",
}
OURS = tuple(f"mstopk:mode={mode}" for mode in MODES)
#: Peers, and their threads.
_THREADS = {
    "torch.topk, unsorted, 1 thread": 1,
    "torch.topk, unsorted, 2 threads": 2,
    "DGC's sampled threshold, 1 thread": 1,
    "DGC's sampled threshold, 2 threads": 2,
}
PEERS = tuple(_THREADS)
TITLES = {key: f"`{key}`" for key in (*OURS, *PEERS)} | {"copy": "a copy of the buffer"}


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each contender, in turn."""
    torch.manual_seed(0)
    gradients = [torch.randn(COUNT) * scale for scale in _SCALES]
    keeps = cell == "residuals"
    contenders = [_ours(number, gradients, keeps) for number in range(len(MODES))]
    contenders += [_theirs(title, gradients, keeps) for title in PEERS]
    contenders.append(_copy(gradients))
    spans = take_turns(contenders, rounds or _ROUNDS, nothing, warm_up=_SETTLED)
    return {"title": _WORKS[cell], "unit": "s", **gathered([[spans]], of_callers)}


def tables(runs: Sequence[Run]) -> str:
    """A line for each contender."""
    return markdown.contest(runs, TITLES, PEERS, OURS)


def _ours(mode: int, gradients: list[torch.Tensor], keeps: bool) -> Contender:
    library = ctypes.CDLL(str(built(MICRO / "libcodes_bench.so")))
    library.bench_selector.restype = ctypes.c_void_p
    wire, residual = torch.empty(2 * K), torch.zeros(COUNT) if keeps else None
    state = ctypes.c_void_p(library.bench_selector())
    calls = itertools.cycle(
        arguments(wire, gradient, residual, COUNT, K, mode) for gradient in gradients
    )

    def run() -> None:
        if not library.bench_select(state, *next(calls)):
            raise AssertionError("not finite")

    def check() -> None:
        chosen, left = wire[:K].abs().min(), 0.0 if residual is None else residual.abs().max()
        if MODES[mode] != "reference" and not 0 < chosen >= left:
            raise AssertionError(f"{chosen:g} was chosen, and {left:g} left")

    return Contender(OURS[mode], run, prepare=lambda: torch.set_num_threads(1), check=check)


def _theirs(title: str, gradients: list[torch.Tensor], keeps: bool) -> Contender:
    source, residual = itertools.cycle(gradients), torch.zeros(COUNT if keeps else 0)
    magnitudes = torch.empty(COUNT)
    largest = torch.empty(K), torch.empty(K, dtype=torch.long)

    def choose(values: torch.Tensor) -> torch.Tensor:
        torch.abs(values, out=magnitudes)
        if title.startswith("torch"):
            return torch.topk(magnitudes, K, sorted=False, out=largest).indices
        # Of every hundredth element; what exceeds it are about as many as wanted.
        threshold = torch.topk(magnitudes[::100], K // 100).values[-1]
        return torch.nonzero(magnitudes > threshold).squeeze(1)

    def alone() -> torch.Tensor:
        values = next(source)
        return values[choose(values)]

    def fed_back() -> torch.Tensor:
        residual.add_(next(source))
        indices = choose(residual)
        values = residual[indices]
        residual[indices] = 0.0
        return values

    run = fed_back if keeps else alone
    return Contender(title, run, prepare=lambda: torch.set_num_threads(_THREADS[title]))


def _copy(gradients: list[torch.Tensor]) -> Contender:
    source, target = itertools.cycle(gradients), torch.zeros(COUNT)
    return Contender("copy", lambda: target.copy_(next(source)), lambda: torch.set_num_threads(1))
