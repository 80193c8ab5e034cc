"""Numbers that change from step to step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR

from aiacc import arguments

_NUMBERS = dict.fromkeys(("total", "warm_up", "first", "last", "begin", "end"), arguments.FINITE)


def linear_factor(step: int, warm_up: int, total: int, first: float, last: float) -> float:
    """Of the learning rate: from ``first`` up to 1 in the warm-up, then down to ``last``.

    Straight lines, with 1 at step ``warm_up`` and ``last`` from step ``total`` on.
    """
    if step < warm_up:
        return first + (1 - first) * step / warm_up
    return 1 - (1 - last) * min((step - warm_up) / (total - warm_up), 1.0)


def linear_decay(
    optimizer: torch.optim.Optimizer,
    total: int,
    *,
    warm_up: int = 0,
    first: float = 0.0,
    last: float = 0.0,
) -> LambdaLR:
    """A scheduler that lets the learning rates rise in a warm-up, then fall linearly.

    AIACC-Training's entries to DAWNBench had it, and its paper prefers it to steps, because it goes
    better with compressed gradients (ICDCS 2022).

    Args:
        optimizer: Whose groups have the largest rates as ``lr``.
        total: Steps of the training; from then on rates stay.
        warm_up: Steps until the largest rates.
        first: Factor of the rates in the first step.
        last: Factor of the rates at the end.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Unless 0 <= warm_up < total, and factors are not negative.
    """
    arguments.check(locals(), optimizer=arguments.OPTIMIZER, **_NUMBERS)
    if not 0 <= warm_up < total:
        raise ValueError(f"warm_up={warm_up}, total={total} (expected 0 <= warm_up < total)")
    if not (first >= 0 and last >= 0):
        raise ValueError(f"first={first}, last={last} (expected factors >= 0)")
    return LambdaLR(optimizer, lambda step: linear_factor(step, warm_up, total, first, last))


def interpolation(begin: int, end: int) -> Callable[[int], float]:
    """The share of SGD in `AdamSGD`: 0 until step ``begin``, 1 from ``end`` on, linear between.

    Raises:
        TypeError: One is no number.
        ValueError: Unless 0 <= begin <= end.
    """
    arguments.check(locals(), **_NUMBERS)
    if not 0 <= begin <= end:
        raise ValueError(f"begin={begin}, end={end} (expected 0 <= begin <= end)")
    return functools.partial(_interpolated, begin, end)  # which a pickle takes


def _interpolated(begin: int, end: int, step: int) -> float:
    if step >= end:
        return 1.0
    return max(0.0, (step - begin) / (end - begin)) if end > begin else 0.0
