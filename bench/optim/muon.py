"""Row optim.muon: torch.optim.Muon, and divided among ranks; the norms of LARS, divided likewise.

Matrices are those of four transformer blocks of a width (4 of d x d, then 4 d x d and d x 4 d),
float32 in host memory, one thread in each rank. All ranks step at the same time in every contender,
for in a job they would; a step is as long as that of the slowest rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import job
from bench.record import Run
from bench.shapes import resnet50
from bench.tables import amount, ratio, spread, table
from bench.turns import timed

WIDTHS = (8, 16, 32, 64, 128, 256, 512)
CELLS = tuple(f"{ranks}:{what}" for ranks in (2, 4) for what in (*WIDTHS, "norms"))
BLOCKS, ROUNDS = 4, 10
_DECIDED = {True: "to divide", False: "each does all", None: ""}

Calls = Mapping[str, Callable[[], object]]


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of the slowest rank, and what the ranks have decided."""
    ranks, what = cell.split(":")
    task = {"what": what, "rounds": rounds or ROUNDS}
    found = job.run("bench.optim.muon:work", task, ranks=int(ranks), timeout_s=1800)
    slowest = {
        name: [list(map(max, *(one["samples"][name][0] for one in found)))]
        for name in found[0]["samples"]
    }
    title = "322 norms of LARS, ResNet-50" if what == "norms" else f"matrices of width {what}"
    title = f"{title}, {ranks} ranks"
    return {"title": title, "unit": "s", **found[0], "samples": slowest}


def work(task: dict[str, Any]) -> dict[str, Any]:
    """What every rank does: its own samples."""
    import torch

    import aiacc.torch as hvd
    from aiacc.torch.parallel.mapping import MEASURED

    hvd.init()
    torch.set_num_threads(1)
    calls, decided = _norms() if task["what"] == "norms" else _muon(int(task["what"]))
    found = timed(calls, task["rounds"], hvd.barrier, warm_up=MEASURED + 1)
    decision = decided()
    hvd.shutdown()
    return {"samples": found, "divided": decision.divided, "predicted_s": decision.divided_s}


def _muon(width: int) -> tuple[Calls, Callable[[], Any]]:
    import torch

    from examples.parallel_muon import ParallelMuon

    shapes = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
    optimizers: dict[str, Any] = {}
    for name in ("each", "divided", "decides"):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes * BLOCKS]
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape)
        optimizers[name] = (torch.optim.Muon if name == "each" else ParallelMuon)(params)
    optimizers["divided"].divide = True
    return {
        name: one.step for name, one in optimizers.items()
    }, lambda: optimizers["decides"].decision


def _norms() -> tuple[Calls, Callable[[], Any]]:
    """What LARS's norms take, of ResNet-50's parameters and gradients."""
    import torch

    import aiacc.torch as hvd

    tensors = [torch.randn(shape) for _, shape in resnet50() for _ in range(2)]

    def norms(name: str, divide: bool | None) -> Any:
        return hvd.parallel_map(
            tensors, torch.linalg.vector_norm, name=f"norms.{name}", divide=divide
        )

    ways = {"each": False, "divided": True, "decides": None}
    calls = {name: functools.partial(norms, name, divide) for name, divide in ways.items()}
    return calls, lambda: calls["decides"]().decision


def tables(runs: Sequence[Run]) -> str:
    """Markdown: medians, divided over what each does alone, and what was decided. Pure."""
    head = ["work", "each does all", "divided", "divided / all", "predicted", "decided"]
    lines = [
        [
            run["title"],
            *(spread(run, name) for name in ("each", "divided")),
            f"{ratio(run, 'divided', 'each'):.2f}x",
            amount(run["predicted_s"], "s"),
            _DECIDED[run["divided"]],
        ]
        for run in runs
    ]
    return table(head, lines)
