"""Trains a small convolutional network on handwritten digits, on any number of ranks.

    aiaccrun -np 2 python examples/digits.py
    mpirun -np 2 python examples/digits.py
    torchrun --nproc-per-node 2 examples/digits.py
    python examples/digits.py

What makes a script for one process a distributed one is marked (1) to (6).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

import aiacc.torch as hvd
from aiacc.planning.plan import Plan

#: Peak learning rate for a global batch of 32 images.
BASE_LR = 0.05

EXPECTED = "expected a file that this script wrote, by --checkpoint"


class Net(nn.Module):
    """Two convolutions and a linear layer; none depends on how a batch is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, of shape (N, 10), for images of shape (N, 1, 8, 8)."""
        hidden = F.relu(self.conv1(images))
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        return self.fc(hidden.flatten(1))


@dataclass
class Split:
    """Images of shape (N, 1, 8, 8) in 0 .. 1, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass
class Result:
    """What a training run came to; equal on all ranks except the waiting time."""

    model: nn.Module
    accuracy: float
    images_per_s: float
    waited_s: float


def load_data() -> tuple[Split, Split]:
    """1437 images to learn from and 360 to test with; every digit has its share in both."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return tuple(
        Split(images.float().reshape(-1, 1, 8, 8) / 16, labels.long())
        for images, labels in ((train_images, train_labels), (test_images, test_labels))
    )


class Progress:
    """A bar on a terminal that is wide enough, a line per epoch elsewhere; only on rank 0."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        # mpirun of Open MPI gives rank 0 a terminal even if it writes to a file; that has no width.
        self.bar = sys.stdout.isatty() and os.get_terminal_size().columns >= 80

    def step(self, step: int, loss: float) -> None:
        """Redraw the bar."""
        if hvd.rank() == 0 and self.bar:
            filled = 40 * step // self._steps
            bar = "#" * filled + "." * (40 - filled)
            print(f"\r[{bar}] step {step}/{self._steps}  loss {loss:.4f} ", end="", flush=True)

    def line(self, text: str, *, lasting: bool = True) -> None:
        """Print a line, in the place of the bar; one that is not ``lasting`` only without bar."""
        if hvd.rank() == 0 and (lasting or not self.bar):
            print(f"\r\033[K{text}" if self.bar else text, flush=True)


class Trainer:
    """Model, optimizer and everything else that a checkpoint has to restore."""

    def __init__(self, options: argparse.Namespace, checkpoint: dict[str, Any] | None) -> None:
        self.options = options
        self.train, self.test = load_data()
        # (2) Each rank computes its part of a global batch. A resumed run keeps that of the
        # checkpoint: on another number of ranks it divides the same batches into other parts.
        self.seed = checkpoint["seed"] if checkpoint else options.seed
        self.global_batch = (
            checkpoint["global_batch"] if checkpoint else options.batch_size * hvd.size()
        )
        self.steps_per_epoch = len(self.train.labels) // self.global_batch
        if self.steps_per_epoch == 0:
            sys.exit(
                f"--batch-size {options.batch_size} on {hvd.size()} ranks (expected at most "
                f"{len(self.train.labels)} images together); choose a smaller one"
            )
        total = options.epochs * self.steps_per_epoch
        self.steps = min(total, total if options.max_steps is None else options.max_steps)
        self.step = 0
        torch.manual_seed(self.seed)
        self.model = Net()
        # (3) A larger batch deserves larger steps; its noise shrinks with the root of its size.
        peak = BASE_LR * math.sqrt(self.global_batch / 32)
        sgd = torch.optim.SGD(
            self.model.parameters(), peak, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        # (4) The optimizer averages the gradients of all ranks.
        self.optimizer = hvd.DistributedOptimizer(
            sgd, self.model.named_parameters(), plan=options.plan
        )
        if checkpoint:
            self.restore(checkpoint, total)
        # Not in the checkpoint: a resumed run may be longer, and is at that step of a longer cycle.
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, peak, total_steps=total, cycle_momentum=False, last_epoch=self.step - 1
        )
        self.waited_s = 0.0

    def restore(self, checkpoint: dict[str, Any], total: int) -> None:
        """Continue from ``checkpoint`` towards step ``total``."""
        self.step = checkpoint["step"]
        if self.step > total:
            sys.exit(
                f"--epochs {self.options.epochs} end at step {total}, and {self.options.resume} is "
                f"of step {self.step} (expected at most that); give more epochs"
            )
        try:
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):
            sys.exit(f"--resume {self.options.resume}: of another model ({EXPECTED})")

    def state(self) -> dict[str, Any]:
        """Everything that training depends on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "seed": self.seed,
            "global_batch": self.global_batch,
            "step": self.step,
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint on rank 0; an interruption leaves the previous one."""
        if hvd.rank() == 0:
            unfinished = path.with_name(path.name + ".unfinished")
            with unfinished.open("wb") as file:
                torch.save(self.state(), file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)

    def batches(self) -> Iterator[Split]:
        """This rank's part of what is left of an epoch's batches, moved by up to one pixel."""
        epoch, done = divmod(self.step, self.steps_per_epoch)
        # The same numbers on every rank, and again when the epoch is resumed in its middle: all
        # shuffle alike and take different parts.
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.train.labels), generator=random)
        moves = torch.randint(-1, 2, (self.steps_per_epoch, 2), generator=random).tolist()
        begin, end = (self.global_batch * (hvd.rank() + i) // hvd.size() for i in (0, 1))
        for step in range(done, self.steps_per_epoch):
            part = order[step * self.global_batch :][begin:end]
            images = self.train.images[part].roll(moves[step], (2, 3))
            yield Split(images, self.train.labels[part])

    def learn(self, batch: Split) -> float:
        """One step; the mean loss of this rank's part."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch.images), batch.labels, reduction="sum")
        # Parts may differ by an image. So that the average over the ranks is the mean over the
        # batch, each is divided by the images that a rank has on average.
        (loss * (hvd.size() / self.global_batch)).backward()  # gradients travel while it runs
        begin = time.perf_counter()
        self.optimizer.synchronize()  # step() alone would do; this way the wait can be measured
        self.waited_s += time.perf_counter() - begin
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.item() / max(len(batch.labels), 1)

    def accuracy(self) -> float:
        """Share of the test images that the model knows; every rank tests its part."""
        part = slice(hvd.rank(), None, hvd.size())
        with torch.no_grad():
            guesses = self.model(self.test.images[part]).argmax(1)
        right = (guesses == self.test.labels[part]).sum().reshape(1)
        # (6) Counts are added up over the ranks.
        return hvd.allreduce(right, op=hvd.Sum).item() / len(self.test.labels)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], str]:
    """What a checkpoint holds, and what is wrong with it."""
    try:
        if not path.is_file():
            return {}, "no such file"
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        return {}, str(error)
    except Exception as error:  # whatever else the file may be
        return {}, f"not written by torch.save, or damaged ({type(error).__name__})"
    numbers = ("seed", "global_batch", "step")
    if (
        isinstance(checkpoint, dict)
        and {"model", "optimizer", *numbers} <= checkpoint.keys()
        and all(isinstance(checkpoint[name], int) for name in numbers)
    ):
        return checkpoint, ""
    return {}, "something else"


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint on rank 0, and bring its contents to every rank."""
    # (5) Only rank 0 needs to see the file; the others receive what it holds.
    found = read_checkpoint(path) if hvd.rank() == 0 else None
    checkpoint, problem = hvd.broadcast_object(found)
    if problem:
        sys.exit(f"--resume {path}: {problem} ({EXPECTED})")
    return dict(checkpoint)


def check_writable(path: Path) -> None:
    """End all ranks now if rank 0 will not be able to write ``path``."""
    folder = path.parent
    writable = folder.is_dir() and os.access(folder, os.W_OK) and not path.is_dir()
    if not hvd.broadcast_object(writable):
        sys.exit(f"--checkpoint {path} cannot be written (expected a file in a writable folder)")


def train(options: argparse.Namespace) -> Result:
    """Train as ``options`` say. Collective: every rank, after `hvd.init`."""
    torch.set_num_threads(1)  # images of 64 pixels are not worth dividing among threads
    if options.checkpoint:
        check_writable(options.checkpoint)
    trainer = Trainer(options, load_checkpoint(options.resume) if options.resume else None)
    # Everybody starts from the parameters of rank 0.
    hvd.broadcast_parameters(trainer.model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(trainer.optimizer, root_rank=0)

    progress = Progress(trainer.steps)
    first, begin = trainer.step, time.perf_counter()
    while trainer.step < trainer.steps:
        for batch in trainer.batches():
            loss = trainer.learn(batch)
            progress.step(trainer.step, loss)
            if trainer.step == trainer.steps:
                break
        epoch = -(-trainer.step // trainer.steps_per_epoch)
        progress.line(f"epoch {epoch}/{options.epochs}  loss {loss:.4f}", lasting=False)
        if options.checkpoint:
            trainer.save(options.checkpoint)
    seconds = time.perf_counter() - begin
    images_per_s = (trainer.step - first) * trainer.global_batch / max(seconds, 1e-9)
    result = Result(trainer.model, trainer.accuracy(), images_per_s, trainer.waited_s)
    progress.line(
        f"test accuracy {result.accuracy:.2%}  {images_per_s:.0f} images/s on {hvd.size()} rank(s)"
        f"  waited {trainer.waited_s:.2f} s of {seconds:.2f} s for communication"
    )
    return result


def read_plan(path: str) -> Plan | str:
    """The plan in a file, or the word for one that the job finds by itself."""
    if path == "auto":
        return path
    try:
        return Plan.decode(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        help="images per rank and step; a resumed run keeps the sum over all ranks",
    )
    parser.add_argument("--max-steps", type=int, help="stop after this many steps in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, help="file to write after every epoch")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from")
    parser.add_argument("--plan", type=read_plan, help="auto, or a file: plan_digits.py")
    options = parser.parse_args(arguments)
    for name, least in (("epochs", 1), ("batch_size", 1), ("max_steps", 0), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and not least <= value < 2**32:
            option = "--" + name.replace("_", "-")
            sys.exit(f"{option} {value} (expected a number from {least} to {2**32 - 1})")
    return options


def main() -> None:
    """Train as the command line says."""
    options = parse()
    hvd.init()  # (1) Find the other ranks; without a launcher there are none.
    train(options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
