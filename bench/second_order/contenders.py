"""Optimizers, what is tuned of each, and the trials: equally many for everybody.

A trial is a point of Halton's sequence in the logarithms of two numbers, so everybody's trials are
spread alike, and nobody's depend on how another's went. All else is fixed, and stated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import qmc
from torch import nn

#: Trials of each contender in each workload, all with seed 0; the best runs with the others.
TRIALS = 12
MOMENTUM = 0.9
#: Of K-FAC, in both workloads: steps between updates, and the learning rate, for the clip decides.
FACTOR_EVERY, INVERSE_EVERY, KFAC_LR = 5, 20, 0.1
#: Of SOAP, its authors' and the package's default.
SOAP_EVERY = 10

Tuned = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """An optimizer.

    Attributes:
        title: As in tables.
        ranges: The two numbers that are tuned, each from the first to the second value.
        make: What steps, in this order, of a model.
    """

    title: str
    ranges: dict[str, tuple[float, float]]
    make: Callable[[nn.Module, Tuned], Sequence[Any]]


def _sgd(model: nn.Module, tuned: Tuned) -> Sequence[Any]:
    return [torch.optim.SGD(model.parameters(), tuned["lr"], 1 - tuned["1 - momentum"])]


def _adam(model: nn.Module, tuned: Tuned) -> Sequence[Any]:
    betas = (1 - tuned["1 - beta1"], 0.999)
    return [torch.optim.Adam(model.parameters(), tuned["lr"], betas)]


def _muon(model: nn.Module, tuned: Tuned) -> Sequence[Any]:
    """Torch's takes matrices only; convolutions and biases are AdamW's."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [
        torch.optim.Muon(matrices, lr=tuned["lr"], weight_decay=0.0),
        torch.optim.AdamW(others, tuned["AdamW's lr"], weight_decay=0.0),
    ]


def _soap(model: nn.Module, tuned: Tuned) -> Sequence[Any]:
    from pytorch_optimizer import SOAP

    betas = (1 - tuned["1 - beta1"], 0.95)
    options = {"weight_decay": 0.0, "precondition_frequency": SOAP_EVERY}
    return [SOAP(model.parameters(), lr=tuned["lr"], betas=betas, **options)]


def _kfac(model: nn.Module, tuned: Tuned) -> Sequence[Any]:
    import aiacc.torch as hvd

    sgd = torch.optim.SGD(model.parameters(), KFAC_LR, momentum=MOMENTUM)
    every = {"factor_every": FACTOR_EVERY, "inverse_every": INVERSE_EVERY}
    return [hvd.KFAC(model, sgd, fisher="mc", **every, **tuned), sgd]


_RATE, _AVERAGE = (1e-3, 1e-1), (0.01, 0.3)
CONTENDERS = {
    "kfac": Contender("K-FAC (aiacc)", {"damping": (1e-5, 1e-1), "kl_clip": (1e-6, 1e-2)}, _kfac),
    "sgd": Contender("SGD", {"lr": (1e-2, 3.0), "1 - momentum": _AVERAGE}, _sgd),
    "adam": Contender("Adam", {"lr": _RATE, "1 - beta1": _AVERAGE}, _adam),
    "muon": Contender("Muon", {"lr": (3e-3, 0.3), "AdamW's lr": _RATE}, _muon),
    "soap": Contender("SOAP", {"lr": _RATE, "1 - beta1": _AVERAGE}, _soap),
}


def trial(name: str, number: int) -> Tuned:
    """What is tuned of a contender, to three digits, in the trial of a number from 0 on."""
    shares = qmc.Halton(2, scramble=False).random(number + 2)[-1]  # the first point is 0
    tuned = {}
    for share, (what, (low, high)) in zip(shares, CONTENDERS[name].ranges.items(), strict=True):
        tuned[what] = float(f"{math.exp(math.log(low) * (1 - share) + math.log(high) * share):.3g}")
    return tuned
