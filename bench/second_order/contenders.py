"""Optimizers, what is tuned of each, and the trials: equally many for everybody.

A trial is a point of Halton's sequence in the logarithms of two numbers, so everybody's trials are
spread alike, and nobody's depend on how another's went. All else is fixed, and stated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: Trials of each contender in each workload, all with seed 0; the best runs with the others.
TRIALS = 12
SEEDS = (1, 2, 3, 4, 5)
MOMENTUM = 0.9
#: Of K-FAC, in both workloads: steps between updates, and the learning rate, for the clip decides.
FACTOR_EVERY, INVERSE_EVERY, KFAC_LR = 5, 20, 0.1
#: Of SOAP, its authors' and the package's default.
SOAP_EVERY = 10


@dataclass(frozen=True)
class Range:
    """A number that is tuned, from ``low`` to ``high`` in its logarithm."""

    name: str
    low: float
    high: float

    def at(self, share: float) -> float:
        """The value at a share of the way, to three digits."""
        return float(
            f"{math.exp(math.log(self.low) * (1 - share) + math.log(self.high) * share):.3g}"
        )


@dataclass(frozen=True)
class Contender:
    """An optimizer with what is tuned of it."""

    name: str
    title: str
    ranges: tuple[Range, Range]
    make: Callable[[nn.Module, dict[str, float], nn.Module], Stepper]


class Stepper:
    """What a training loop calls: optimizers that step together, and K-FAC before them if any."""

    def __init__(
        self, *optimizers: torch.optim.Optimizer, kfac: Any = None, loss: nn.Module | None = None
    ) -> None:
        self._optimizers = optimizers
        self._kfac, self._loss = kfac, loss

    def zero_grad(self) -> None:
        """Before the forward pass."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def before_backward(self, outputs: torch.Tensor) -> None:
        """Between the passes: K-FAC's sampled targets."""
        if self._kfac is not None:
            self._kfac.sample(outputs, self._loss)

    def step(self) -> None:
        """Behind the backward pass."""
        if self._kfac is not None:
            self._kfac.step()
        for optimizer in self._optimizers:
            optimizer.step()


def _sgd(model: nn.Module, tuned: dict[str, float], _: nn.Module) -> Stepper:
    momentum = 1 - tuned["1 - momentum"]
    return Stepper(torch.optim.SGD(model.parameters(), tuned["lr"], momentum=momentum))


def _adam(model: nn.Module, tuned: dict[str, float], _: nn.Module) -> Stepper:
    betas = (1 - tuned["1 - beta1"], 0.999)
    return Stepper(torch.optim.Adam(model.parameters(), tuned["lr"], betas))


def _muon(model: nn.Module, tuned: dict[str, float], _: nn.Module) -> Stepper:
    """Torch's takes matrices only; convolutions and biases are AdamW's."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return Stepper(
        torch.optim.Muon(matrices, lr=tuned["lr"], weight_decay=0.0),
        torch.optim.AdamW(others, tuned["AdamW's lr"], weight_decay=0.0),
    )


def _soap(model: nn.Module, tuned: dict[str, float], _: nn.Module) -> Stepper:
    from pytorch_optimizer import SOAP

    betas = (1 - tuned["1 - beta1"], 0.95)
    optimizer = SOAP(
        model.parameters(),
        lr=tuned["lr"],
        betas=betas,
        weight_decay=0.0,
        precondition_frequency=SOAP_EVERY,
    )
    return Stepper(optimizer)


def _kfac(model: nn.Module, tuned: dict[str, float], loss: nn.Module) -> Stepper:
    import aiacc.torch as hvd

    sgd = torch.optim.SGD(model.parameters(), KFAC_LR, momentum=MOMENTUM)
    kfac = hvd.KFAC(
        model,
        sgd,
        damping=tuned["damping"],
        kl_clip=tuned["kl_clip"],
        factor_every=FACTOR_EVERY,
        inverse_every=INVERSE_EVERY,
        fisher="mc",
    )
    return Stepper(sgd, kfac=kfac, loss=loss)


_RATE = Range("lr", 1e-3, 1e-1)
CONTENDERS = (
    Contender("sgd", "SGD", (Range("lr", 1e-2, 3.0), Range("1 - momentum", 0.01, 0.3)), _sgd),
    Contender("adam", "Adam", (_RATE, Range("1 - beta1", 0.01, 0.3)), _adam),
    Contender("muon", "Muon", (Range("lr", 3e-3, 0.3), Range("AdamW's lr", 1e-3, 0.1)), _muon),
    Contender("soap", "SOAP", (_RATE, Range("1 - beta1", 0.01, 0.3)), _soap),
    Contender(
        "kfac", "K-FAC (aiacc)", (Range("damping", 1e-5, 1e-1), Range("kl_clip", 1e-6, 1e-2)), _kfac
    ),
)


def contender(name: str) -> Contender:
    """The one of that name; ValueError for another."""
    for one in CONTENDERS:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in CONTENDERS)
    raise ValueError(f"contender {name!r} (expected one of {names})")


def trial(one: Contender, number: int) -> dict[str, float]:
    """What is tuned, in the trial of a number from 0 on."""
    shares = (_halton(number + 1, base) for base in (2, 3))
    return {range_.name: range_.at(share) for range_, share in zip(one.ranges, shares, strict=True)}


def _halton(index: int, base: int) -> float:
    found, part = 0.0, 1.0
    while index:
        part /= base
        index, digit = divmod(index, base)
        found += part * digit
    return found
