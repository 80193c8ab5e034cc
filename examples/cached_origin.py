"""Trains on handwritten digits that lie in a slow store, with a cache of the node in between.

    python examples/cached_origin.py
    python examples/cached_origin.py --uncached
    aiaccrun -np 2 python examples/cached_origin.py --epochs 8

The store is pretended: each object lets its reader wait for 20 ms. What a script needs for the
cache is marked (1) to (3). See docs/data.md.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import aiacc.torch as hvd
from aiacc.data import CachedDataset

HELD_OUT = 360
BATCH = 32


class Store(Dataset[Any]):
    """Digits, one object each; several threads may ask at a time."""

    def __init__(self, latency_ms: float) -> None:
        digits = load_digits()
        self.images = torch.from_numpy(digits.images).float()[HELD_OUT:, None] / 16
        self.labels = torch.from_numpy(digits.target).long()[HELD_OUT:]
        self.latency_s = latency_ms / 1000

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.latency_s)
        return self.images[index].clone(), int(self.labels[index])


def augmented(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """Shift an image by up to one pixel."""
    image, label = sample
    dy, dx = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(image, (dy, dx), (1, 2)), label


class Augmented(Dataset[Any]):
    """A dataset that augments: what the cache must not be put around."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented(self.dataset[index])


def loader_of(options: argparse.Namespace) -> tuple[DataLoader[Any], Any]:
    """Batches of this rank, and the sampler whose epoch is to be set."""
    store = Store(options.latency_ms)
    if options.uncached:
        data: Any = Augmented(store)
        sampler: Any = DistributedSampler(data, hvd.size(), hvd.rank(), seed=1)
    else:
        # (1) The dataset without augmentation goes into the cache, augmentation behind it.
        data = CachedDataset(store, memory="64MB", transform=augmented, requests=16)
        # (2) While a batch is computed, the next ones are fetched, 16 samples at a time.
        sampler = data.sampler(seed=1, ahead=4 * BATCH)
    return DataLoader(data, BATCH, sampler=sampler, drop_last=True), sampler


def accuracy(model: nn.Module) -> float:
    """Per cent of the held-out digits that the model knows."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:HELD_OUT, None] / 16
    labels = torch.from_numpy(digits.target)[:HELD_OUT]
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=20.0, help="of each object")
    parser.add_argument("--uncached", action="store_true", help="read the store in every epoch")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or not 0 <= options.latency_ms < 1000:
        parser.error(
            f"--epochs {options.epochs} --latency-ms {options.latency_ms} (expected at least 1, "
            "and from 0 to less than 1000)"
        )
    return options


def main() -> None:
    """Train, and say how long each epoch took and where its samples came from."""
    options = parse()
    hvd.init()
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer: Any = torch.optim.Adam(model.parameters(), 5e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    loader, sampler = loader_of(options)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        begin, count = time.perf_counter(), 0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            count += len(labels) * hvd.size()
        seconds = time.perf_counter() - begin
        if hvd.rank() == 0:
            text = f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.4f}  "
            text += f"{count / seconds:.0f} images/s"
            if not options.uncached:
                # (3) What the processes of this machine have read since the last line.
                text += f"  {loader.dataset.log_epoch(epoch).line()}"  # type: ignore[attr-defined]
            print(text, flush=True)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy(model):.2f}%  on {hvd.size()} rank(s)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
