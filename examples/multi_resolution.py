"""Trains on small images first and on large ones at last, with LARS and a linear decay.

    aiaccrun -np 2 python examples/multi_resolution.py
    python examples/multi_resolution.py

The recipe of AIACC's entry to DAWNBench, 28 epochs of ImageNet: 13 with 96 pixels, 11 with 128, 3
with 224 and one with 288, in batches of 32768, at last of 16384. Most steps are cheap, and the last
ones see the details. Here it is shrunk to handwritten digits of 8 pixels and a few seconds. A
network that ends in a mean over all pixels takes images of any size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

import aiacc.torch as hvd
from aiacc.optim import LARS, linear_decay


class Phase(NamedTuple):
    """Epochs at one resolution."""

    epochs: int
    #: Of an image, on both sides.
    pixels: int
    #: Images of all ranks in a step.
    batch: int


#: As above, but for the last phases, which take longer to get used to when an image is so small.
RECIPE = (Phase(13, 6, 64), Phase(11, 8, 64), Phase(6, 10, 64), Phase(4, 12, 32))
#: Largest learning rate.
PEAK = 8.0


class Net(nn.Module):
    """Three convolutions, and a mean over what is left of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*channels, 3, padding=1, bias=False)
            for channels in ((1, 8), (8, 16), (16, 32))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (8, 16, 32))
        self.last = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, of shape (N, 10), for images of shape (N, 1, S, S)."""
        hidden = images
        for number, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = F.relu(norm(convolve(hidden)))
            if number == 0:
                hidden = F.max_pool2d(hidden, 2)
        return self.last(hidden.mean((2, 3)))


def load_data() -> list[torch.Tensor]:
    """Images of shape (N, 1, 8, 8) in 0 .. 1 to learn from and to test with, and their labels."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    first, second, first_labels, second_labels = map(torch.from_numpy, parts)
    pixels = [images.float().reshape(-1, 1, 8, 8) / 16 for images in (first, second)]
    return [*pixels, first_labels.long(), second_labels.long()]


def resized(images: torch.Tensor, pixels: int) -> torch.Tensor:
    """The images with so many pixels on both sides."""
    return F.interpolate(images, (pixels, pixels), mode="bilinear", align_corners=False)


def steps_of(phase: Phase, images: int) -> int:
    """Whole batches of a phase, of data of so many images."""
    return phase.epochs * (images // phase.batch)


def train(recipe: Sequence[Phase] = RECIPE) -> float:
    """Follow a recipe; the share of test images that are known. Collective, after `hvd.init`."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # these images are not worth dividing among threads
    images, test_images, labels, test_labels = load_data()
    model = Net()
    optimizer = LARS(model.parameters(), lr=PEAK, weight_decay=1e-4, nesterov=True)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    total = sum(steps_of(phase, len(labels)) for phase in recipe)
    schedule = linear_decay(optimizer, total, warm_up=total // 5, first=0.1, last=0.05)
    random = torch.Generator().manual_seed(2)
    for phase in recipe:
        began = time.perf_counter()
        inputs = resized(images, phase.pixels)
        for _ in range(phase.epochs):
            order = torch.randperm(len(labels), generator=random)  # alike on all ranks
            for batch in order.split(phase.batch)[: len(labels) // phase.batch]:
                part = batch.tensor_split(hvd.size())[hvd.rank()]
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs[part]), labels[part], reduction="sum")
                # Parts may differ by an image; see digits.py.
                (loss * (hvd.size() / phase.batch)).backward()
                optimizer.step()
                schedule.step()
        if hvd.rank() == 0:
            known = accuracy(model, resized(test_images, phase.pixels), test_labels)
            seconds = time.perf_counter() - began
            print(
                f"{phase.epochs:2} epochs, {phase.pixels:2} x {phase.pixels:<2} pixels, batches of "
                f"{phase.batch}: {seconds:.1f} s, {known:.1%} known at this size"
            )
    return accuracy(model, resized(test_images, recipe[-1].pixels), test_labels)


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the images whose label the model knows."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    """Train as the recipe says, or at one size throughout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--large", action="store_true", help="all epochs at the last size, to compare with"
    )
    options = parser.parse_args()
    recipe = RECIPE
    if options.large:
        recipe = tuple(phase._replace(pixels=RECIPE[-1].pixels) for phase in RECIPE)
    hvd.init()
    began = time.perf_counter()
    known = train(recipe)
    if hvd.rank() == 0:
        seconds = time.perf_counter() - began
        print(f"test accuracy {known:.2%} after {seconds:.1f} s on {hvd.size()} rank(s)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
