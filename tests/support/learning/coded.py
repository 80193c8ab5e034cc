"""Ranks whose float32 travel coded: over TCP, for ranks that share memory code nothing.

A `Job` reduces the gradients that a test gives, by one of the ways that there are.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from tests.support.jobs import in_job, on_ranks
from tests.support.process_group import join_gloo, leave
from tests.support.ranks import free_port, run_ranks

#: Options of `DistributedOptimizer`; None: a hook of `DistributedDataParallel`.
WAYS: dict[str, dict[str, Any] | None] = {
    "optimizer": {},
    "groups": {"groups": 2},
    "views": {"gradient_as_bucket_view": True},
    "hook": None,
}


#: The engine that codes on one host.
OVER_TCP = {"AIACC_ENGINE": "tcp"}
#: `on_ranks` with that.
on_ranks_over_tcp = functools.partial(on_ranks, env=OVER_TCP)


def _run_in_ddp(size: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return run_ranks(size, in_ddp, free_port(), function, *args, **options)


#: `on_ranks_over_tcp` with a default group for `DistributedDataParallel`.
on_ranks_in_ddp = functools.partial(on_ranks_over_tcp, run=_run_in_ddp, starts=False)


@in_job
def in_ddp(port: int, function: Callable[..., Any], *args: Any) -> None:
    """Call it in a job that has a default group for `DistributedDataParallel`, too."""
    join_gloo(port)
    function(*args)
    leave()


def values_of(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers, 5000 if no shape is given."""
    return torch.randn(shape or (5000,), generator=torch.Generator().manual_seed(seed))


def check_same(tensor: torch.Tensor, **options: Any) -> None:
    """Assert that all ranks have the same bits."""
    everyones = hvd.allgather(tensor.reshape(1, -1), **options)
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))


def coding_optimizer(
    model: nn.Module, compression: Any, lr: float = 0.0, **options: Any
) -> torch.optim.Optimizer:
    """Of what ``model`` trains; by default it sums, and leaves parameters as they are."""
    return hvd.DistributedOptimizer(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr),
        [(name, p) for name, p in model.named_parameters() if p.requires_grad],
        compression=compression,
        **{"op": hvd.Sum, **options},
    )


class Given(nn.Module):
    """Parameters, zeros at first, whose gradients are those that it is called with, by name."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Those of four dimensions are channels last."""
        super().__init__()
        for name, shape in shapes.items():
            zeros = torch.zeros(shape)
            if len(shape) == 4:
                zeros = zeros.to(memory_format=torch.channels_last)
            self.register_parameter(name, nn.Parameter(zeros))

    def forward(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of their products with the parameters."""
        products = []
        for name, gradient in gradients.items():
            parameter = self.get_parameter(name)
            if gradient.is_sparse:
                rows = gradient.coalesce()
                parameter = nn.functional.embedding(rows.indices()[0], parameter, sparse=True)
                gradient = rows.values()
            products.append((parameter * gradient).sum())
        return torch.stack(products).sum()


def new_scaler(scale: float) -> torch.amp.GradScaler:
    """One that grows after many steps only, and whose scale may be changed before the first."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    scaler.scale(torch.zeros(()))
    return scaler


class Job:
    """Reduces gradients that a test gives, by one of `WAYS` or with options of an optimizer.

    A step takes the sums from the parameters, which so are minus all sums there were.
    """

    def __init__(
        self,
        policy: Any,
        shapes: Mapping[str, tuple[int, ...]],
        way: str | dict[str, Any] = "optimizer",
        *,
        scale: float | None = None,
        bucket_mb: float = 25,
        **ddp: Any,
    ) -> None:
        """Of a model of these shapes; with ``scale`` a scaler begins with that."""
        self._made = (policy, shapes, way), {"scale": scale, "bucket_mb": bucket_mb, **ddp}
        options = WAYS[way] if isinstance(way, str) else way
        self.model: Any = Given(shapes)
        self.state: Any = None
        self.scaler: Any = None
        if scale is not None:
            self.scaler = new_scaler(scale)
        if options is None:
            self.state = hvd.HookState(
                compression=policy, named_parameters=self.model.named_parameters()
            )
            if self.scaler is not None:
                self.state.feedback.follow(self.scaler)
            self.wrap(bucket_mb, **ddp)
            self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1.0)
        else:
            if isinstance(options.get("groups"), list):
                parameters = dict(self.model.named_parameters())
                groups = [[parameters[name] for name in names] for names in options["groups"]]
                options = {**options, "groups": groups}
            self.optimizer = coding_optimizer(self.model, policy, 1.0, **options)
        self.set_to_none = not (options and options.get("gradient_as_bucket_view"))
        self.averages = options is None or options.get("op") == hvd.Average

    def wrap(self, bucket_mb: float = 25, **ddp: Any) -> None:
        """Let a new `DistributedDataParallel` reduce, in buckets of this size."""
        self.wrapped = DistributedDataParallel(self.model, bucket_cap_mb=bucket_mb, **ddp)
        self.wrapped.register_comm_hook(self.state, hvd.allreduce_hook)

    def again(self) -> Job:
        """Another one, made alike."""
        positional, named = self._made
        return Job(*positional, **named)

    @property
    def feedback(self) -> Any:
        """Of the optimizer, or of the hook."""
        return self.optimizer.feedback if self.state is None else self.state.feedback

    def backward(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Let gradients come, added to those that there are."""
        loss = (self.model if self.state is None else self.wrapped)(gradients)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def zero_grad(self) -> None:
        """Begin a step."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)

    def step(self, *passes: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One step with these gradients; their sums, or averages where it averages."""
        self.zero_grad()
        for gradients in passes:
            self.backward(gradients)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.model.named_parameters()
        }

    def kept(self, *names: str) -> dict[str, torch.Tensor]:
        """All that is kept, or that of these parameters."""
        state = self.feedback.state_dict()
        return {
            f"{kind}.{name}": one
            for kind, of in [*state["kept"].items(), ("factors", state["factors"])]
            for name, one in of.items()
            if name in names or not names
        }

    def outcome(self) -> dict[str, torch.Tensor]:
        """What steps have come to: parameters, and what is kept, for the scale that there is."""
        scale = torch.tensor(float(self.feedback.state_dict()["scale"]))
        parameters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return {**parameters, **self.kept(), "scale": scale}

    def load(self, model: Any, feedback: Any) -> None:
        """Go on from states of another job."""
        self.model.load_state_dict(model)
        self.feedback.load_state_dict(feedback)

    def saved(self) -> tuple[Any, Any]:
        """Arguments of `load`."""
        return copy.deepcopy((self.model.state_dict(), self.feedback.state_dict()))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether they are equal, bit for bit; where only one has a tensor, that is of zeros."""
    return all(
        torch.equal(one[name], other[name])
        if name in one and name in other
        else not (one if name in one else other)[name].any()
        for name in {**one, **other}
    )
