"""The trainings: digits by a convolutional network, text by a transformer; of the examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

import aiacc.torch as hvd
from aiacc.compression.policy import LEAST_DIMENSIONS
from bench.training.contenders import Contender
from examples import compressed_text
from examples import digits as example

#: Images per rank and step; pieces of text per rank and step.
_IMAGES, _PIECES = 32, 8
#: Of the transformer: 117,000 parameters.
_WIDTH, _HEADS, _BLOCKS = 64, 4, 2
_HELD_OUT_PIECES = 1024
_images, _words = cache(example.load_data), cache(compressed_text.load_text)
_DIGITS_LR, _DIGITS_WARMUP = example.BASE_LR, 0.3


@dataclass
class Training:
    """What a rank trains.

    Attributes:
        model: With its first parameters.
        optimizer: Of one process.
        learning_rate: Share of the peak in a step.
        batches: This rank's part of each step.
        loss: Of a batch, to be averaged over the ranks.
        held_out: Mean loss of what nobody learns from. Collective: every rank.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    held_out: Callable[[], float]


def digits(seed: int, steps: int, contender: Contender) -> Training:
    """examples/digits.py: the same network, data, peak learning rate and momentum.

    What travels with momentum gets none here, and as much more decay as momentum, which decay no
    longer goes through, would make of it. Gradients that stay dense have their own.
    """
    sent_momentum = contender.momentum
    learned, tested = _images()
    torch.manual_seed(seed)
    model = example.Net()
    peak = _DIGITS_LR * math.sqrt(_IMAGES * hvd.size() / 32)
    own = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
    sent = {"momentum": 0.0, "weight_decay": own["weight_decay"] / (1 - sent_momentum)}
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    if sent_momentum:
        coded = [one for one in model.parameters() if one.dim() >= LEAST_DIMENSIONS]
        dense = [one for one in model.parameters() if one.dim() < LEAST_DIMENSIONS]
        groups = [{"params": dense}, {"params": coded, **sent, "nesterov": False}]
    sgd = torch.optim.SGD(groups, peak, **own)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images), labels)

    def held_out() -> float:
        with torch.no_grad():
            return loss(tested.images, tested.labels).item()

    def learning_rate(step: int) -> float:
        warmup = max(1, round(_DIGITS_WARMUP * steps))
        return _up_and_down(step, warmup, steps)

    return Training(model, sgd, learning_rate, _batches(learned, seed, steps), loss, held_out)


def _batches(
    learned: example.Split, seed: int, steps: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of each global batch, moved by up to one pixel."""
    random = torch.Generator().manual_seed(seed)
    count = _IMAGES * hvd.size()
    mine = slice(hvd.rank() * _IMAGES, (hvd.rank() + 1) * _IMAGES)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < count:
            order = torch.randperm(len(learned.labels), generator=random)
        part, order = order[:count][mine], order[count:]
        moves = torch.randint(-1, 2, (2,), generator=random).tolist()
        yield learned.images[part].roll(moves, (2, 3)), learned.labels[part]


def text(seed: int, steps: int, _: Contender) -> Training:
    """examples/compressed_text.py, with half the width and more steps."""
    return _text(seed, steps, compressed_text.PEAK_LR, (0.9, 0.98))


def plain_text(seed: int, steps: int, _: Contender) -> Training:
    """Without momentum: twice the learning rate, and squares are averaged over more steps."""
    return _text(seed, steps, 2 * compressed_text.PEAK_LR, (0.0, 0.999))


def _text(seed: int, steps: int, peak: float, betas: tuple[float, float]) -> Training:
    words = _words()
    torch.manual_seed(seed)
    model = compressed_text.Net(_WIDTH, _HEADS, _BLOCKS)
    adam = torch.optim.AdamW(model.parameters(), peak, betas=betas, weight_decay=0.01)

    def loss(seen: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return compressed_text.loss_of(model, seen, following)

    def held_out() -> float:
        return compressed_text.held_out_loss(model, words.held_out, _HELD_OUT_PIECES)

    def learning_rate(step: int) -> float:
        return _up_and_down(step, compressed_text.WARMUP, steps)

    parts = compressed_text.batches(words.train, _PIECES, seed, steps)
    return Training(model, adam, learning_rate, parts, loss, held_out)


def _up_and_down(step: int, warmup: int, steps: int) -> float:
    """A line up, then half a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup)))


#: By name: trainings of a seed, of so many steps, for a contender.
WORKLOADS = {"digits": digits, "text": text, "plain_text": plain_text}
