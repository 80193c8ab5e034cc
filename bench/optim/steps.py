"""Row optim.steps: a step of LARS and of LAMB beside timm's, and torch's simpler optimizers.

All contenders step in turn on tensors of their own of ResNet-50's shapes, float32 in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aiacc.optim import LAMB, LARS
from bench.record import Run
from bench.shapes import parameters, resnet50
from bench.tables import contest
from bench.turns import timed

CELLS = ("lars:1", "lars:2", "lamb:1", "lamb:2")
ROUNDS, WARM_UP = 20, 3
#: Of all of them, as far as they have it.
_SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
TITLES = {
    "lars": "LARS (aiacc)",
    "timm_lars": "timm Lars, default",
    "timm_lars_foreach": "timm Lars, foreach",
    "sgd_fused": "torch SGD, fused",
    "lamb": "LAMB (aiacc)",
    "timm_lamb": "timm Lamb, default",
    "timm_lamb_foreach": "timm Lamb, foreach",
    "adamw_fused": "torch AdamW, fused",
}
#: Those that compute the same.
OURS = tuple(key for key, title in TITLES.items() if "aiacc" in title)
PEERS = ("timm_lars", "timm_lars_foreach", "timm_lamb", "timm_lamb_foreach")

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of steps, with as many threads of torch as the cell says."""
    name, threads = cell.split(":")
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    shapes = [shape for _, shape in resnet50()]
    optimizers = {key: make(parameters(shapes)) for key, make in _contenders(name).items()}
    calls = {key: optimizer.step for key, optimizer in optimizers.items()}
    return {
        "title": f"{name.upper()}, {threads} thread{'s'[: threads != '1']}",
        "unit": "s",
        "samples": timed(calls, rounds or ROUNDS, warm_up=WARM_UP),
    }


def _contenders(name: str) -> dict[str, Make]:
    from tests.support.learning.timm_optimizers import Lamb, Lars

    # A ratio and decay for every tensor, as timm's have.
    if name == "lamb":
        return {
            "lamb": lambda params: LAMB(params, exclude=None),
            "timm_lamb": lambda params: Lamb(params, max_grad_norm=None),
            "timm_lamb_foreach": lambda params: Lamb(params, max_grad_norm=None, foreach=True),
            "adamw_fused": lambda params: torch.optim.AdamW(params, fused=True),
        }
    return {
        "lars": lambda params: LARS(params, **_SGD, exclude=None),
        "timm_lars": lambda params: Lars(params, **_SGD),
        "timm_lars_foreach": lambda params: Lars(params, **_SGD, foreach=True),
        "sgd_fused": lambda params: torch.optim.SGD(params, **_SGD, fused=True),
    }


def tables(runs: Sequence[Run]) -> str:
    """Markdown: medians, and ours over the faster of timm's. Pure."""
    return contest(runs, TITLES, PEERS, OURS)
