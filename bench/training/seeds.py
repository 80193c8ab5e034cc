"""Trainings to their end, a sample each: every contender with every seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.turns import in_turn

#: What is kept of one training.
Training = dict[str, Any]


def trained(
    names: Iterable[str],
    seeds: int,
    train: Callable[[int, list[str]], Mapping[str, Training]],
    sample: Callable[[Training], float],
) -> dict[str, Any]:
    """What is kept of a cell: "trainings" by contender, in the order of seeds, and "samples".

    A seed, from 1 on, gives all contenders the same parameters and the same data.

    Args:
        names: The contenders.
        seeds: Number of them.
        train: Trains contenders with a seed, in the order that it is given.
        sample: What counts of a training.
    """
    trainings: dict[str, list[Training]] = {name: [] for name in names}
    for seed in range(1, seeds + 1):
        for name, one in train(seed, in_turn(trainings, seed)).items():
            trainings[name].append(one)
    samples = {name: [[sample(one)] for one in ones] for name, ones in trainings.items()}
    return {"trainings": trainings, "samples": samples}


def spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """The mean, and in brackets the least and the largest."""
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(fmean(values))}{unit} ({low} to {high})"
