"""What a user gives to KFAC, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import nn

from aiacc import arguments
from aiacc.kfac.factors import APPROXIMATIONS
from aiacc.kfac.inverses import SPLITS
from aiacc.torch.kfac.agreement import check_kind
from aiacc.torch.kfac.fusion import FUSIONS
from aiacc.torch.kfac.solvers import SOLVERS

#: A number, or what gives one for the number of a step.
Schedule = float | Callable[[int], float]
#: A number, or what gives one; None: the model's outputs tell.
LossTerms = float | Callable[[], float] | None
_CHOICES = ("distribution", "fisher", "approx", "split", "solve", "fusion")
EMPIRICAL, SAMPLED = "empirical", "mc"


@dataclass(frozen=True)
class Options:
    """See KFAC."""

    lr: Schedule | None
    damping: Schedule
    decay: Schedule
    kl_clip: Schedule | None
    factor_every: Schedule
    inverse_every: Schedule
    distribution: str
    fisher: str
    approx: str
    split: str
    solve: str
    fusion: str
    loss_scale: float
    loss_terms: LossTerms
    grad_scaler: Any
    skip_layers: Sequence[str | type[nn.Module]]

    def __post_init__(self) -> None:
        check_kind(self.distribution)
        skip: object = self.skip_layers
        if not (
            isinstance(skip, Collection)
            and not isinstance(skip, str)
            and all(isinstance(one, str | type) for one in skip)
        ):
            raise TypeError(
                f"skip_layers={skip!r:.100} (expected a list of names of modules and classes)"
            )
        _one_of("fisher", self.fisher, (EMPIRICAL, SAMPLED))
        _one_of("approx", self.approx, APPROXIMATIONS)
        _one_of("split", self.split, SPLITS)
        _one_of("solve", self.solve, tuple(SOLVERS))
        _one_of("fusion", self.fusion, FUSIONS)
        if self.grad_scaler is not None:
            check_type("grad_scaler", self.grad_scaler, torch.amp.GradScaler)
        if not (_is_number(self.loss_scale) and 0 < self.loss_scale < math.inf):
            raise ValueError(f"loss_scale={self.loss_scale!r} (expected a finite number > 0)")
        terms = self.loss_terms
        if self.fisher == SAMPLED and terms is not None:
            raise ValueError(
                f"loss_terms={terms!r} with fisher={SAMPLED!r} (expected None, for sample() counts "
                "what it draws); leave it out"
            )
        if not (terms is None or callable(terms)):
            _checked_terms(terms, some=True)  # a function may say that a pass has none
        for name in ("damping", "kl_clip", "decay", "factor_every", "inverse_every", "lr"):
            wish = getattr(self, name)
            if callable(wish) or (wish is None and name in ("lr", "kl_clip")):
                continue
            if not _is_number(wish):
                raise TypeError(f"{name}={wish!r} (expected a number, or a function of the step)")
            self.at(name, 0)

    @property
    def terms(self) -> Callable[[], float] | None:
        """Gives ``loss_terms`` of a pass; None if nobody was told.

        Raises, when it is called:
            ValueError: It is no number, or negative.
        """
        given = self.loss_terms
        if given is None:
            return None
        return lambda: _checked_terms(given() if callable(given) else given)

    def described(self, step: int) -> str:
        """What has to be equal on all ranks; of schedules what they give in this step."""
        names = ("lr", "damping", "decay", "kl_clip", "factor_every", "inverse_every")
        values = [f"{name}={_text(getattr(self, name), step)}" for name in names]
        texts = [f"{n}={getattr(self, n)}" for n in _CHOICES]
        return ", ".join([*texts, *values])

    def at(self, name: str, step: int) -> float:
        """The value of ``name`` in a step.

        Raises:
            ValueError: It is out of range.
        """
        wish = getattr(self, name)
        value = wish(step) if callable(wish) else wish
        every = name.endswith("_every")
        good = (
            arguments.is_number(value)
            and math.isfinite(value)
            and (
                value >= 1 and value == int(value)
                if every
                else 0 <= value < 1
                if name == "decay"
                else value >= 0
                if name == "lr"
                else value > 0
            )
        )
        if not good:
            ranges = {"decay": "0 to below 1", "lr": ">= 0"}
            expected = "a whole number >= 1" if every else ranges.get(name, "> 0")
            raise ValueError(f"{name}={value!r} at step {step} (expected {expected})")
        return float(value)

    def due(self, name: str, step: int) -> bool:
        """Whether a step is one of every so many."""
        return step % int(self.at(name, step)) == 0


def check_type(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless the argument ``name`` is of that class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r:.100} (expected a {kind.__name__})")


def check_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """``optimizer`` itself.

    Raises:
        TypeError: It is none of torch's.
        ValueError: One that computes gradients in its step, or whose gradients are never whole.
    """
    from aiacc.torch.adasum_optimizer import AdasumDistributed
    from aiacc.torch.decoupled.optimizer import DecoupledDistributed

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__} (expected one of torch.optim, or a "
            "DistributedOptimizer of one); call KFAC(model, optimizer)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer is LBFGS, which computes gradients in its own step (expected one that takes "
            "those of backward()); use SGD"
        )
    if isinstance(optimizer, AdasumDistributed | DecoupledDistributed):
        how = "op=Adasum" if isinstance(optimizer, AdasumDistributed) else "schedule='decoupled'"
        raise ValueError(
            f"optimizer is a DistributedOptimizer with {how}, in which no rank has the reduced "
            "gradients before the step (expected op=Average and schedule='all_reduce'); leave that "
            "argument out"
        )
    return optimizer


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} (expected one of {', '.join(known)})")


def _checked_terms(terms: Any, some: bool = False) -> float:
    if isinstance(terms, torch.Tensor) and terms.numel() == 1:
        terms = terms.item()
    if not (_is_number(terms) and 0 <= terms < math.inf and (terms or not some)):
        raise ValueError(
            f"loss_terms={terms!r} (expected a number {'>' if some else '>='} 0 of examples, or of "
            "tokens, over which the loss is a mean, or a function that gives it)"
        )
    return float(terms)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _text(wish: Schedule | None, step: int) -> str:
    return f"schedule with {wish(step)}" if callable(wish) else str(wish)
