"""Trains an autoencoder of handwritten digits by K-FAC and by Adam, on any number of ranks.

    python examples/kfac_digits.py
    aiaccrun -np 2 python examples/kfac_digits.py

A deep autoencoder is what K-FAC was first shown on: curvature differs by orders of magnitude among
its layers. What K-FAC needs is marked (1) to (4). docs/kfac.md explains its options.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn

import aiacc.torch as hvd

#: Of the hidden layers; the innermost one is the code.
WIDTHS = (64, 100, 50, 25, 8, 25, 50, 100, 64)
#: Learning rates, and the damping: the best of some that were tried on one rank, no more.
KFAC_LR, DAMPING, ADAM_LR = 0.1, 0.3, 0.03
#: Of an image, a sum over its pixels, and here over images, too.
LOSS = nn.BCEWithLogitsLoss(reduction="sum")


class Result(NamedTuple):
    """What a training came to; the loss is that of images that nobody trained with."""

    name: str
    loss: float
    seconds: float
    report: str


def autoencoder(seed: int) -> nn.Sequential:
    """Logits of 64 pixels from 64 pixels, through 8 numbers."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """1,437 images of 64 pixels in 0 to 1 to learn from, and 360 to test with."""
    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    return pixels[:1437], pixels[1437:]


def train(name: str, options: argparse.Namespace) -> Result:
    """Train by "K-FAC" or "Adam". Collective: every rank."""
    learn, test = images()
    model = autoencoder(options.seed)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    second_order = name == "K-FAC"
    # (1) K-FAC changes gradients; any optimizer takes them from there.
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), KFAC_LR, momentum=0.9)
        if second_order
        else torch.optim.Adam(model.parameters(), ADAM_LR)
    )
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    kfac = None
    if second_order:
        # (2) Factors are built in the passes of every 2nd step, and inverted in every 10th.
        kfac = hvd.KFAC(
            model,
            optimizer,
            damping=DAMPING,
            kl_clip=0.01,
            factor_every=2,
            inverse_every=10,
            fisher="mc",
            distribution=options.distribution,
        )
    part = options.batch_size // hvd.size()
    order = torch.Generator().manual_seed(options.seed)
    began = time.perf_counter()
    for step in range(options.steps):
        batch = torch.randperm(len(learn), generator=order)[: part * hvd.size()]
        optimizer.zero_grad()
        pixels = learn[batch[hvd.rank() :: hvd.size()]]
        logits = model(pixels)
        if kfac is not None:
            kfac.sample(logits, LOSS)  # (3) Gradients of images that the model could have made.
        (LOSS(logits, pixels) / len(pixels)).backward()
        if kfac is not None:
            kfac.step()  # (4) Waits for the mean gradients of all ranks, and preconditions them.
        optimizer.step()
        if hvd.rank() == 0 and (step + 1) % 100 == 0:
            print(f"{name}: step {step + 1}  loss {tested(model, test):.2f}", flush=True)
    seconds = time.perf_counter() - began
    return Result(name, tested(model, test), seconds, "" if kfac is None else str(kfac.report()))


def tested(model: nn.Module, test: torch.Tensor) -> float:
    """Cross entropy of an image in nats."""
    with torch.no_grad():
        return LOSS(model(test), test).item() / len(test)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks together")
    parser.add_argument("--distribution", default="spd", help="see docs/kfac.md")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.batch_size < 1:
        sys.exit("--steps and --batch-size: expected numbers >= 1")
    return options


def main() -> None:
    """Train both, and compare."""
    options = parse()
    hvd.init()
    torch.set_num_threads(1)  # layers this small are not worth dividing among threads
    results = [train(name, options) for name in ("K-FAC", "Adam")]
    if hvd.rank() == 0:
        print(results[0].report)
        for name, loss, seconds, _ in results:
            print(
                f"{name}: test loss {loss:.2f} after {options.steps} steps in {seconds:.1f} s on "
                f"{hvd.size()} rank(s)"
            )
    hvd.shutdown()


if __name__ == "__main__":
    main()
