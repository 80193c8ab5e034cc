"""Trains with torch.optim.Muon, whose Newton-Schulz iterations the ranks divide among themselves.

    aiaccrun -np 2 python examples/parallel_muon.py
    python examples/parallel_muon.py

Muon orthogonalises the momentum of every matrix in each step, by a few products of matrices. After
an all-reduce of gradients all ranks would do the same. With `parallel_map` each does a part, and
sends its results while it goes on; where that does not pay, it says so, and each does all.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

# What torch's Muon calls; there are no public names for them.
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

import aiacc.torch as hvd
from aiacc.process_sets import ProcessSet, global_process_set


class ParallelMuon(torch.optim.Muon):
    """`torch.optim.Muon` whose matrices are orthogonalised by the ranks for each other.

    Collective: every rank of the set, with equal gradients, as after an all-reduce.
    """

    #: See `parallel_map`.
    divide: bool | None = None
    process_set: ProcessSet = global_process_set
    #: What was decided last.
    decision: Any = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients, to the same bits as torch's."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            mapped = hvd.parallel_map(
                [self._direction(group, parameter) for parameter in params],
                functools.partial(
                    _zeropower_via_newtonschulz,
                    ns_coefficients=group["ns_coefficients"],
                    ns_steps=group["ns_steps"],
                    eps=group["eps"],
                ),
                cost=newton_schulz_operations,
                name=f"muon.{number}",
                process_set=self.process_set,
                divide=self.divide,
            )
            self.decision = mapped.decision
            for parameter, update in zip(params, mapped, strict=True):
                rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-rate)
        return loss

    def _direction(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        """Momentum with this gradient: cheap, and the state of all ranks."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = group["momentum"]
        kept = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(kept, momentum) if group["nesterov"] else kept


def newton_schulz_operations(matrix: torch.Tensor) -> float:
    """In proportion to the multiplications of one iteration."""
    least, largest = sorted(matrix.shape)
    return float(2 * least * least * largest + least**3)


class Net(nn.Module):
    """Fully connected, with three matrices in its middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.middle = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.last = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, of shape (N, 10), for images of shape (N, 64)."""
        hidden = F.relu(self.first(images))
        for layer in self.middle:
            hidden = hidden + F.relu(layer(hidden))
        return self.last(hidden)


def train(width: int, steps: int, batch: int = 64, divide: bool | None = None) -> nn.Module:
    """The network after some steps. Collective, after `hvd.init`."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = Net(width)
    matrices = [(name, p) for name, p in model.named_parameters() if name.startswith("middle")]
    others = [(name, p) for name, p in model.named_parameters() if not name.startswith("middle")]
    muon = ParallelMuon([p for _, p in matrices], lr=0.02)
    muon.divide = divide
    optimizers = [
        hvd.DistributedOptimizer(muon, matrices),
        hvd.DistributedOptimizer(torch.optim.AdamW([p for _, p in others], lr=3e-3), others),
    ]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        part = torch.randint(len(labels), (batch,), generator=random).tensor_split(hvd.size())
        own = part[hvd.rank()]
        loss = F.cross_entropy(model(images[own]), labels[own], reduction="sum")
        (loss * (hvd.size() / batch)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    hvd.init()
    began = time.perf_counter()
    model = train(options.width, options.steps)
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    with torch.no_grad():
        known = float((model(images.float() / 16).argmax(1) == labels).float().mean())
    if hvd.rank() == 0:
        print(
            f"{known:.2%} of the images it has learnt from, {options.steps} steps in "
            f"{time.perf_counter() - began:.1f} s on {hvd.size()} rank(s)"
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
