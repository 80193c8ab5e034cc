"""A training step of a chain of blocks: eager, compiled whole, and compiled by blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from bench import job, turns
from bench.record import Run
from bench.tables import amount, spread, table

CELLS = ("blocks",)
TITLES = {
    "eager": "eager",
    "whole": "`torch.compile(model)`",
    "blocks": "`compile_blocks(model)`",
}
_JOBS = 3
_WIDTH, _BLOCKS, _BATCH = 512, 8, 64
#: What is measured of a step beside its time.
_PARTS = ("backward", "wait", "half")


class Block(torch.nn.Module):
    """Half of a transformer's layer: the half that has most of its parameters."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Add what the layers make of ``value``."""
        hidden = torch.nn.functional.gelu(self.wide(self.norm(value)))
        return value + torch.as_tensor(self.narrow(hidden))


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs in which all ways take turns; parts are those of the slowest rank of each step."""
    del cell
    task = {"rounds": rounds or 15}
    jobs = [job.run("bench.compile:rank", task) for _ in range(_JOBS)]
    parts = {
        way: {
            part: [
                max(of_ranks)
                for ranks in jobs
                for of_ranks in zip(*(rank["parts"][way][part] for rank in ranks), strict=True)
            ]
            for part in _PARTS
        }
        for way in TITLES
    }
    found = turns.gathered([[rank["spans"] for rank in ranks] for ranks in jobs])
    title = f"{_BLOCKS} blocks of width {_WIDTH}, batch {_BATCH}, 2 ranks"
    return {"title": title, "unit": "s", "samples": found["samples"], "parts": parts}


def rank(task: Mapping[str, Any]) -> dict[str, Any]:
    """Trains in all ways."""
    import aiacc.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    warm_up = 5
    parts: dict[str, dict[str, list[float]]] = {
        way: {part: [] for part in _PARTS} for way in TITLES
    }
    contenders = [turns.Contender(way, _trainer(hvd, way, parts[way])) for way in TITLES]
    spans = turns.take_turns(contenders, task["rounds"], hvd.barrier, warm_up=warm_up)
    hvd.shutdown()
    kept = {way: {part: one[warm_up:] for part, one in of.items()} for way, of in parts.items()}
    return {"spans": spans, "parts": kept}


def _trainer(hvd: Any, way: str, parts: dict[str, list[float]]) -> Callable[[], None]:
    """A step, which adds to ``parts``."""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(*(Block(_WIDTH) for _ in range(_BLOCKS)))
    run = torch.compile(model) if way == "whole" else model
    if way == "blocks":
        hvd.compile_blocks(model)
    named = [(f"{way}.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6), named)
    arrivals: list[tuple[float, int]] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: arrivals.append((time.perf_counter(), parameter.numel()))
        )
    batch = torch.randn(_BATCH, _WIDTH)

    def step() -> None:
        arrivals.clear()
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.synchronize()
        parts["wait"].append(time.perf_counter() - backward)
        with optimizer.skip_synchronize():
            optimizer.step()
        parts["backward"].append(backward - forward)
        parts["half"].append((half_way(arrivals) - forward) / (backward - forward))

    return step


def half_way(arrivals: Sequence[tuple[float, int]]) -> float:
    """When half of the elements had come."""
    total, seen = sum(count for _, count in arrivals), 0
    for moment, count in arrivals:
        seen += count
        if 2 * seen >= total:
            return moment
    raise ValueError("no gradient came (expected one per parameter)")


def tables(runs: Sequence[Run]) -> str:
    """A line per way to run the model."""
    (run,) = runs
    lines = []
    for way, title in TITLES.items():
        backward, wait, half = (median(run["parts"][way][part]) for part in _PARTS)
        submitted = f"{100 * half:.0f} % of backward"
        lines.append([title, spread(run, way), amount(backward, "s"), amount(wait, "s"), submitted])
    head = ["model", "step", "backward", "wait after backward", "half of the bytes submitted after"]
    return f"{table(head, lines)}\n\n{run['title']}."
