"""Trains a small transformer on the words of Python's own library, with compressed gradients.

    AIACC_ENGINE=tcp aiaccrun -np 2 python examples/compressed_text.py --compression int8
    AIACC_ENGINE=tcp mpirun -np 2 python examples/compressed_text.py --compression bf16
    python examples/compressed_text.py

Compression acts between hosts. AIACC_ENGINE=tcp has ranks of one machine talk as if each were on a
host of its own: that shows what training becomes, but saves no time. Without it they share memory,
and results are those of `--compression none`. `auto` counts hosts: on one it changes nothing. See
docs/compression.md.
"""

from __future__ import annotations

import argparse
import ast
import math
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

import aiacc
import aiacc.torch as hvd
from aiacc.compression import codecs

#: Characters of ASCII; the text has no others.
SYMBOLS = 128
#: Characters that the model sees at once.
CONTEXT = 64
#: Peak learning rate, and the steps until it is reached.
PEAK_LR, WARMUP = 2e-3, 50
#: Steps whose losses are averaged for what is printed.
SHOWN = 50

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Block(nn.Module):
    """Attention to what came before, then two layers; both are added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_layers = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """For ``hidden`` of shape (N, T, width), of the same shape."""
        count, length, width = hidden.shape
        parts = self.attention(self.before_attention(hidden))
        query, key, value = (
            part.view(count, length, self.heads, -1).transpose(1, 2)
            for part in parts.split(width, 2)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attended(seen.transpose(1, 2).reshape(count, length, width))
        return hidden + self.down(F.gelu(self.up(self.before_layers(hidden))))


class Net(nn.Module):
    """A causal transformer over characters; 438,000 parameters as it is by default."""

    def __init__(self, width: int = 128, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS)
        for embedding in (self.symbols, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits, of shape (N, T, SYMBOLS), for characters of shape (N, T)."""
        hidden = self.symbols(text) + self.places.weight[: text.shape[1]]
        return self.head(self.last(self.blocks(hidden)))


@dataclass
class Text:
    """Characters to learn from, and held out: int64, in one dimension."""

    train: torch.Tensor
    held_out: torch.Tensor


def load_text() -> Text:
    """Docstrings of Python's own library; those of every twentieth module are held out."""
    library = Path(sysconfig.get_path("stdlib"))
    train, held_out = [], []
    modules = [*library.glob("*.py"), *library.glob("[a-z]*/*.py")]
    written = (_docstrings(path) for path in sorted(modules) if "site-packages" not in path.parts)
    for number, words in enumerate(filter(None, written)):
        (held_out if number % 20 == 0 else train).append(words)
    return Text(_symbols("\n".join(train)), _symbols("\n".join(held_out)))


def _docstrings(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # Lib/test and lib2to3 have some on purpose
        return ""
    documented = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    return "\n".join(filter(None, map(ast.get_docstring, documented)))


def _symbols(text: str) -> torch.Tensor:
    letters = text.encode("ascii", "ignore")
    return torch.frombuffer(bytearray(letters), dtype=torch.uint8).long()


def batches(
    text: torch.Tensor, per_rank: int, seed: int, steps: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of each step: what is seen, and what follows, of shape (N, CONTEXT)."""
    # The same numbers on every rank, which take different parts.
    random = torch.Generator().manual_seed(seed)
    count = per_rank * hvd.size()
    mine = slice(hvd.rank() * per_rank, (hvd.rank() + 1) * per_rank)
    window = torch.arange(CONTEXT + 1)
    for _ in range(steps):
        begins = torch.randint(len(text) - CONTEXT, (count,), generator=random)[mine]
        pieces = text[begins[:, None] + window]
        yield pieces[:, :-1], pieces[:, 1:]


def loss_of(model: nn.Module, seen: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy per character, in nats."""
    return F.cross_entropy(model(seen).flatten(0, 1), following.flatten())


def held_out_loss(model: nn.Module, text: torch.Tensor, pieces: int) -> float:
    """Loss over pieces that are spread evenly over ``text``; every rank computes its part."""
    begins = torch.linspace(0, len(text) - CONTEXT - 1, pieces).long()[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        whole = text[begins[:, None] + torch.arange(CONTEXT + 1)]
        # Of more ranks than pieces some have none, whose mean would be none, either.
        mean = loss_of(model, whole[:, :-1], whole[:, 1:]) if len(begins) else torch.zeros(())
        total = mean * len(begins)
    return hvd.allreduce(total.reshape(1), op=hvd.Sum).item() / pieces


def learning_rate(step: int, steps: int) -> float:
    """Share of the peak: a line up, then half a cosine down to nothing."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP))


def train(options: argparse.Namespace) -> float:
    """Train as ``options`` say; the held-out loss. Collective: every rank, after `hvd.init`."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    text = hvd.broadcast_object(load_text() if hvd.rank() == 0 else None, root_rank=0)
    model = Net()
    # A codec's name, or one of `Compression`; docs/compression.md has both.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01),
        model.named_parameters(),
        compression=options.compression,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, options.steps)
    )
    losses: list[float] = []
    begin, sent = time.perf_counter(), aiacc.stats()["data_bytes"]
    for seen, following in batches(text.train, options.batch_size, options.seed, options.steps):
        optimizer.zero_grad()
        loss = loss_of(model, seen, following)
        loss.backward()  # gradients travel while it runs
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if hvd.rank() == 0 and len(losses) % SHOWN == 0:
            recent = sum(losses[-SHOWN:]) / SHOWN
            print(f"step {len(losses)}/{options.steps}  loss {recent:.4f}", flush=True)
    steps = max(1, options.steps)
    milliseconds = (time.perf_counter() - begin) / steps * 1e3
    kib = (aiacc.stats()["data_bytes"] - sent) / steps / 1024
    result = held_out_loss(model, text.held_out, 512)
    if hvd.rank() == 0:
        print(
            f"held-out loss {result:.4f}  compression {options.compression}  "
            f"{kib:.1f} KiB on the wire and {milliseconds:.1f} ms per step on {hvd.size()} rank(s)"
        )
    return result


def read_compression(name: str) -> str:
    """The name of a codec, or "auto" for one that the job finds by itself; it may name codecs."""
    word, colon, named = name.partition(":")
    try:
        for codec in (named.split("+") if colon else []) if word == "auto" else [name]:
            codecs.parse(codec)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--compression",
        type=read_compression,
        default="none",
        metavar="CODEC",
        help="none, bf16, int8, mstopk:density=0.01, ..., auto, or auto:bf16+int8 "
        "(default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=8, help="pieces per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    for name, least in (("steps", 0), ("batch_size", 1), ("seed", 0)):
        value = getattr(options, name)
        if not least <= value < 2**32:
            option = "--" + name.replace("_", "-")
            sys.exit(f"{option} {value} (expected a number from {least} to {2**32 - 1})")
    return options


def main() -> None:
    """Train as the command line says."""
    options = parse()
    hvd.init()
    train(options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
