"""What a step costs with K-FAC, by how often factors and inverses are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

import aiacc.torch as hvd
from bench.second_order.workloads import WORKLOADS, Workload

FREQUENCIES = (1, 10, 100)
#: Steps of a sample, with as many updates at each frequency as there are in so many steps.
STEPS = 100


def wide_network() -> nn.Module:
    """Convolutions of 64 and 128 channels, as the first half of a ResNet has them."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, 10),
    )


def measured(repeats: int) -> list[dict[str, Any]]:
    """CPU seconds of `STEPS` steps of each training, without K-FAC and at each frequency."""
    found = []
    digits = WORKLOADS[1]
    for title, work, model in (
        *((work.title, work, work.model) for work in WORKLOADS),
        ("64 and 128 channels", digits, wide_network),
    ):
        runners = {"without": _runner(work, model(), None)}
        for frequency in FREQUENCIES:
            runners[f"every {frequency}"] = _runner(work, model(), frequency)
        samples: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(repeats):
            for name, run in runners.items():
                began = time.process_time()
                run()
                samples[name].append(round(time.process_time() - began, 5))
        found.append({"title": title, "batch": work.batch, "samples_s": samples})
    return found


def _runner(work: Workload, model: nn.Module, frequency: int | None) -> Callable[[], None]:
    sgd = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    kfac: Any = None
    if frequency is not None:
        kfac = hvd.KFAC(model, sgd, damping=0.1, factor_every=frequency, inverse_every=frequency)
    inputs, targets = (values[: work.batch] for values in work.learned())

    def steps(number: int = STEPS) -> None:
        for _ in range(number):
            sgd.zero_grad()
            work.loss(model(inputs), targets).backward()
            if kfac is not None:
                kfac.step()
            sgd.step()

    steps(1)  # measures costs, and places
    return steps


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: milliseconds per step, and how many times one without K-FAC. Pure."""
    names = list(rows[0]["samples_s"])
    titles = [
        "step without K-FAC",
        *(f"{name} step{'s'[: name != 'every 1']}" for name in names[1:]),
    ]
    lines = ["| training | " + " | ".join(titles) + " |", "| --- " * (len(titles) + 1) + "|"]
    for row in rows:
        medians = {name: median(samples) / STEPS for name, samples in row["samples_s"].items()}
        cells = [
            f"{seconds * 1e3:.2f} ms"
            + ("" if name == "without" else f" ({seconds / medians['without']:.2f} x)")
            for name, seconds in medians.items()
        ]
        lines.append(f"| {row['title']}, batch {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
