"""Choosing 1 % of a fused buffer on one thread, against what torch and NumPy offer.

Ours also write the pairs that travel. With residuals every contender adds what it did not send
before, and keeps what it does not send now.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench import tables as markdown
from bench.native import MICRO, arguments, built
from bench.record import Run
from bench.turns import Contender, gathered, nothing, of_callers, take_turns

CELLS = ("alone", "residuals")
COUNT, K = 25_000_000, 250_000
#: Our modes, in the order of their numbers.
MODES = ("tracked", "exact", "reference")
THREADS = (1, 2)
_ROUNDS = 7
#: Steps until a threshold with residuals has settled.
_SETTLED = 30
_WORKS = {
    "alone": f"{K:,} of {COUNT:,} float32",
    "residuals": f"{K:,} of {COUNT:,} float32, with residuals",
}
OURS = tuple(f"mstopk:mode={mode}" for mode in MODES)
_TORCH = tuple(
    f"torch.topk, {order}, {threads} thread{'s' * (threads > 1)}"
    for order in ("sorted", "unsorted")
    for threads in THREADS
)
_NUMPY = "numpy.argpartition"
PEERS = (*_TORCH, _NUMPY)
TITLES = {key: f"`{key}`" for key in (*OURS, *PEERS)} | {"copy": "a copy of the buffer"}


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each contender, in turn."""
    torch.manual_seed(0)
    gradients = [torch.randn(COUNT) for _ in range(4)]
    keeps = cell == "residuals"
    contenders = [_ours(number, gradients, keeps) for number in range(len(MODES))]
    for title in _TORCH:
        contenders.append(_theirs(title, _topk("unsorted" not in title), gradients, keeps))
    contenders += [_theirs(_NUMPY, _partitioned, gradients, keeps), _copy(gradients)]
    for _ in range(_SETTLED):
        contenders[0].run()
    spans = take_turns(contenders, rounds or _ROUNDS, nothing, warm_up=1)
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


def _theirs(
    title: str,
    choose: Callable[[torch.Tensor], torch.Tensor],
    gradients: list[torch.Tensor],
    keeps: bool,
) -> Contender:
    source, residual = itertools.cycle(gradients), torch.zeros(COUNT if keeps else 0)

    def alone() -> torch.Tensor:
        values = next(source)
        return values[choose(values)]

    def fed_back() -> torch.Tensor:
        residual.add_(next(source))
        indices = choose(residual)
        values = residual[indices]
        residual[indices] = 0.0
        return values

    threads = THREADS[-1] if f"{THREADS[-1]} threads" in title else 1
    run = fed_back if keeps else alone
    return Contender(title, run, prepare=lambda: torch.set_num_threads(threads))


def _topk(ordered: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: torch.topk(values.abs(), K, sorted=ordered).indices


def _partitioned(values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.argpartition(values.abs().numpy(), COUNT - K)[COUNT - K :])


def _copy(gradients: list[torch.Tensor]) -> Contender:
    source, target = itertools.cycle(gradients), torch.zeros(COUNT)
    return Contender("copy", lambda: target.copy_(next(source)))
