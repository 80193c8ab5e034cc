"""Row kfac.steps: what a step costs with K-FAC, by how often factors and inverses are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import aiacc.torch as hvd
from bench.record import Run
from bench.second_order.workloads import AUTOENCODER, DIGITS, Workload
from bench.tables import ratio, spread, table
from bench.turns import of_cpu, timed

ROUNDS = 5
#: Steps of a sample, with as many updates at each frequency as there are in so many steps.
STEPS = 100
#: Every so many steps factors and inverses are made; None: without K-FAC.
FREQUENCIES = {"without": None, "every 1": 1, "every 10": 10, "every 100": 100}


def wide_network() -> nn.Module:
    """Convolutions of 64 and 128 channels, as the first half of a ResNet has them."""
    layers: list[nn.Module] = []
    for channels, features, stride in ((1, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(channels, features, 3, stride, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


_CELLS = {
    "autoencoder": (AUTOENCODER, AUTOENCODER.model),
    "digits": (DIGITS, DIGITS.model),
    "wide": (DIGITS, wide_network),
}
CELLS = tuple(_CELLS)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """CPU seconds of a step of one thread, without K-FAC and at each frequency."""
    work, model = _CELLS[cell]
    torch.set_num_threads(1)
    hvd.init()
    calls = {name: _steps(work, model(), every) for name, every in FREQUENCIES.items()}
    found = timed(calls, rounds or ROUNDS, warm_up=0, clock=of_cpu)
    hvd.shutdown()
    samples = {name: [[one / STEPS for one in job] for job in jobs] for name, jobs in found.items()}
    title = "64 and 128 channels" if cell == "wide" else work.title
    return {"title": f"{title}, batch {work.batch}", "unit": "s", "samples": samples}


def _steps(work: Workload, model: nn.Module, frequency: int | None) -> Callable[[], None]:
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


def tables(runs: Sequence[Run]) -> str:
    """Markdown: CPU time of a step, and how many times one without K-FAC. Pure."""
    names = [name for name in FREQUENCIES if name != "without"]
    lines = []
    for run in runs:
        cells = [f"{spread(run, name)} ({ratio(run, name, 'without'):.2f}x)" for name in names]
        lines.append([run["title"], spread(run, "without"), *cells])
    head = [f"{name} step{'s'[: name != 'every 1']}" for name in names]
    return table(["training", "step without K-FAC", *head], lines)
