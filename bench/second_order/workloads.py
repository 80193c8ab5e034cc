"""What is trained, until when: scikit-learn's handwritten digits, 8 x 8 pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from examples.digits import Net, load_data

#: Of the hidden layers of the autoencoder; the innermost one is the code.
WIDTHS = (64, 256, 128, 64, 16, 64, 128, 256, 64)


@dataclass(frozen=True)
class Workload:
    """A training that ends when a target is reached, or after so many steps.

    ``measure`` says of a model what is to fall to ``target``, in ``twice`` measurements in a row.
    Examples of a step, ``batch`` of them, are drawn with replacement from ``learned``.
    """

    title: str
    model: Callable[[], nn.Module]
    loss: nn.Module
    batch: int
    learned: Callable[[], tuple[Tensor, Tensor]]
    measure: Callable[[nn.Module], float]
    target: float
    twice: int
    steps: int


def _autoencoder() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@cache
def _digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    learn, test = load_data()
    return (learn.images, learn.labels), (test.images, test.labels)


@cache
def _pixels() -> Tensor:
    return torch.cat([images for images, _ in _digits()]).flatten(1)


def _squared_error(model: nn.Module) -> float:
    return nn.functional.mse_loss(model(_pixels()), _pixels()).item()


def _error(model: nn.Module) -> float:
    images, labels = _digits()[1]
    return (model(images).argmax(1) != labels).float().mean().item()


#: Its measure: the mean squared error of a pixel, of all 1,797 images.
AUTOENCODER = Workload(
    title="autoencoder",
    model=_autoencoder,
    loss=nn.MSELoss(),
    batch=256,
    learned=lambda: (_pixels(), _pixels()),
    measure=_squared_error,
    target=0.006,
    twice=1,
    steps=1500,
)
#: Its measure: the share of 360 held-out images that are classified wrongly.
DIGITS = Workload(
    title="convolutional network",
    model=Net,
    loss=nn.CrossEntropyLoss(),
    batch=128,
    learned=lambda: _digits()[0],
    measure=_error,
    target=0.02,
    twice=2,
    steps=500,
)
