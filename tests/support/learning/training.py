"""What a job should have learned: the same training by one process with the data of all ranks.

A situation is a function that trains what it is given, in words that all trainings have::

    def clipping(training):
        for batch in range(3):
            training.zero_grad()
            training.backward(batch)
            training.clip(0.05)
            training.step()

    compare(clipping, Recipe(make_model, make_optimizer, loss), gradient_as_bucket_view=True)

`Alone` follows it in one process, `Together` by a DistributedOptimizer. What both have learned is
equal: to the last bit with two ranks, whose sums have one order.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.decoupled.part import Part

#: ``loss(model, rank, batch)`` of one rank's batch; batches are numbered from 0.
Loss = Callable[[Any, int, int], torch.Tensor]
#: Of sums in another order, in the coarsest dtype of the tests' models, float32.
_OTHER_ORDER = {"rtol": 2e-6, "atol": 2e-6}


class Recipe(NamedTuple):
    """What is trained. Each call makes the same."""

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Loss


class Training:
    """A model, its optimizer and the loss of a rank's batch, in words of all trainings."""

    #: Whether gradients are those of all ranks by now.
    reduced = False

    def __init__(self, model: nn.Module, optimizer: Any, loss: Loss) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def backward(
        self,
        batch: int,
        *,
        loss: Loss | None = None,
        scaler: torch.amp.GradScaler | None = None,
        create_graph: bool = False,
    ) -> torch.Tensor:
        """The backward pass of this batch, of another loss or a scaled one perhaps; the loss."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Let gradients be those of all ranks."""
        raise NotImplementedError

    def clip(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip gradients by the norm of all of them, which is returned."""
        self.synchronize()
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Divide gradients by the scale."""
        self.synchronize()
        scaler.unscale_(self.optimizer)

    def drop(self, parameter: nn.Parameter) -> None:
        """Leave ``parameter`` as it is in this step."""
        parameter.grad = None

    def change(self, change: Callable[[nn.Module], object]) -> None:
        """Call ``change``, which may write to gradients that are not those of all ranks yet."""
        change(self.model)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Update the parameters, unless ``scaler`` finds gradients that are not finite."""
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.reduced = False

    def step_by_closure(self, batch: int) -> torch.Tensor:
        """A step whose closure computes the gradients; its loss."""

        def closure() -> torch.Tensor:
            self.zero_grad()
            value = self.backward(batch)
            self._end_of_closure()
            return value

        return self.optimizer.step(closure)

    def refused(self, action: Callable[[Training], object], match: str) -> None:
        """Where ranks train together: ``action`` is an error, and no parameter has changed."""

    def state(self) -> dict[str, Any]:
        """A copy of the state of all parameters."""
        return copy.deepcopy(self.optimizer.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        """Take the state of all parameters, and drop gradients that are under way."""
        self.optimizer.load_state_dict(state)
        self.reduced = False

    def _end_of_closure(self) -> None:
        """What an optimizer that calls a closure does not do by itself."""


class Alone(Training):
    """One process with the batches of all ranks, without any communication.

    Gradients of a rank's batches are added up first, then those of the ranks, as in a job.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        ranks: Sequence[int] | None = None,
        op: int = hvd.Average,
    ) -> None:
        """``ranks`` has whose batches count, by default those of all."""
        super().__init__(model, optimizer, loss)
        ranks = range(hvd.size()) if ranks is None else ranks
        self._fills = op != hvd.Adasum
        self._divisor = 1 if op == hvd.Sum else len(ranks)
        #: Gradients of the batches since the last step, by rank.
        self._given: dict[int, dict[nn.Parameter, torch.Tensor]] = {rank: {} for rank in ranks}

    def backward(self, batch, *, loss=None, scaler=None, create_graph=False):
        self.reduced, total = False, 0.0
        for rank, given in self._given.items():
            trained = [p for p in self.model.parameters() if p.requires_grad]
            for parameter in trained:
                parameter.grad = given.get(parameter)
            value = (loss or self.loss)(self.model, rank, batch)
            if value.requires_grad:
                scaled = value if scaler is None else scaler.scale(value)
                scaled.backward(create_graph=create_graph)
            given.update((p, p.grad) for p in trained if p.grad is not None)
            total = total + value.detach()
        return total / self._divisor

    def synchronize(self) -> None:
        """Zeros are the gradient of a parameter that no rank has used, where these are reduced."""
        if self.reduced:
            return
        for parameter in self.model.parameters():
            given = [of[parameter] for of in self._given.values() if parameter in of]
            if given:
                total = functools.reduce(torch.add, given)  # of sparse ones, too
                parameter.grad = (total / self._divisor).detach()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if self._fills else None
        self._forget()
        self.reduced = True

    def drop(self, parameter: nn.Parameter) -> None:
        self.synchronize()
        super().drop(parameter)

    def change(self, change: Callable[[nn.Module], object]) -> None:
        """Do so with the gradients of each rank."""
        for given in self._given.values():
            for parameter in given:
                parameter.grad = given[parameter]
            change(self.model)
            given.update((parameter, parameter.grad) for parameter in given)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        self.synchronize()
        super().step(scaler)

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._forget()

    def _end_of_closure(self) -> None:
        self.synchronize()

    def _forget(self) -> None:
        for given in self._given.values():
            given.clear()


class Together(Training):
    """This rank's part of a training by a DistributedOptimizer."""

    def __init__(self, model: nn.Module, optimizer: Any, loss: Loss, rank: int | None = None):
        """``rank`` is whose batches this one has."""
        super().__init__(model, optimizer, loss)
        self._rank = hvd.rank() if rank is None else rank

    def backward(self, batch, *, loss=None, scaler=None, create_graph=False):
        value = (loss or self.loss)(self.model, self._rank, batch)
        if value.requires_grad:
            scaled = value if scaler is None else scaler.scale(value)
            scaled.backward(create_graph=create_graph)
        return value

    def synchronize(self) -> None:
        if not self.reduced:
            self.optimizer.synchronize()
            self.reduced = self.optimizer.op != hvd.Adasum

    def clip(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        if not hasattr(self.optimizer, "clip_grad_norm_"):
            return super().clip(max_norm, norm_type)
        return self.optimizer.clip_grad_norm_(max_norm, norm_type)  # a rank has a part of them

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        with self.optimizer.skip_synchronize() if self.reduced else contextlib.nullcontext():
            super().step(scaler)

    def refused(self, action: Callable[[Training], object], match: str) -> None:
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        with pytest.raises(Exception, match=match):
            action(self)
        assert all(map(torch.equal, before, self.model.parameters()))

    def state(self) -> dict[str, Any]:
        if hasattr(self.optimizer, "consolidate_state_dict"):
            self.optimizer.consolidate_state_dict(None)
        return super().state()


def distributed(
    model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> torch.optim.Optimizer:
    """``optimizer`` made a distributed one, whose gradients have the names of the model's."""
    if options.get("schedule") == "decoupled":
        options = {"model": model, **options}
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def alone(recipe: Recipe, ranks: Sequence[int] | None = None, op: int = hvd.Average) -> Alone:
    """The training of one process."""
    model = recipe.make_model()
    return Alone(model, recipe.make_optimizer(model.parameters()), recipe.loss, ranks, op)


def together(recipe: Recipe, rank: int | None = None, **options: Any) -> Together:
    """The training of this rank, by a DistributedOptimizer with these options."""
    model = recipe.make_model()
    optimizer = distributed(model, recipe.make_optimizer(model.parameters()), **options)
    return Together(model, optimizer, recipe.loss, rank)


def squares(*shape: int, dtype: torch.dtype = torch.float64) -> Loss:
    """The mean square of what a model makes of random inputs of this shape."""

    def loss(model: Any, rank: int, batch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * batch + rank)
        return model(torch.randn(shape, generator=generator, dtype=dtype)).pow(2).mean()

    return loss


def compare(
    situation: Callable[[Training], object],
    recipe: Recipe,
    *,
    exactly: bool = True,
    late: bool = False,
    **options: Any,
) -> Together:
    """Assert that ranks learn in this situation what one process does, and find the same.

    Collective: every rank; of a process set among ``options`` its members.

    Args:
        situation: Trains what it is given, and returns what it has found, if anything.
        recipe: What that is.
        exactly: Whether two ranks learn it to the last bit.
        late: Let all-gathers of parameters start when they are waited for: who does not wait has
            parameters of before.
        **options: Of the DistributedOptimizer.

    Returns:
        The training of this rank, at its end.
    """
    op = options.get("op", hvd.Average)
    process_set = options.get("process_set", hvd.global_process_set)
    ranks = process_set.ranks if process_set.included() else [hvd.rank()]
    if op == hvd.Adasum:
        ranks = [0]  # what it makes of equal changes is that change
    one = alone(recipe, ranks, op)
    expected = situation(one)
    exactly = exactly and len(ranks) <= 2 and op != hvd.Adasum
    job = together(recipe, 0 if op == hvd.Adasum else None, **options)
    with gathers_late() if late else contextlib.nullcontext():
        tolerance = {"rtol": 0.0, "atol": 0.0} if exactly else _OTHER_ORDER
        found = situation(job)
        if found is not job:
            torch.testing.assert_close(found, expected, **tolerance)
        check_learned(job.model, one.model, exactly=exactly)
        if process_set.included():
            check_same_everywhere(job.model, process_set)
    return job


def check_learned(model: nn.Module, expected: nn.Module, *, exactly: bool) -> None:
    """Assert that the parameters of two models are equal, or but for the order of sums."""
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert one.dtype == other.dtype, name
        if exactly:
            assert torch.equal(one, other), f"{name}: {(one - other).abs().max()}"
        else:
            torch.testing.assert_close(
                one, other, **_OTHER_ORDER, msg=lambda text, name=name: f"{name}: {text}"
            )


@contextlib.contextmanager
def gathers_late() -> Iterator[None]:
    """Let all-gathers of the decoupled schedule start when they are waited for."""
    start, finish = Part.gather, Part.finish_gather

    def gather(part: Part) -> None:
        part._gather_handle = -1

    def finish_gather(part: Part) -> None:
        if part._gather_handle == -1:
            start(part)
        finish(part)

    Part.gather, Part.finish_gather = gather, finish_gather
    yield
    Part.gather, Part.finish_gather = start, finish


def _pickled(both: Any) -> Any:
    return pickle.loads(pickle.dumps(both))


def _saved(both: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(both, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


#: Ways to copy a model, or a model with its optimizer.
DUPLICATES = {"deepcopy": copy.deepcopy, "pickle": _pickled, "save": _saved}


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector, of the widest of their types."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train(training: Training, batches: Sequence[int]) -> Training:
    """A step for each of ``batches``; ``training``."""
    for batch in batches:
        training.zero_grad()
        training.backward(batch)
        training.step()
    return training


def check_same_everywhere(model: nn.Module, process_set: Any = hvd.global_process_set) -> None:
    """Assert that ``model`` is the same to the last bit on all ranks."""
    everyones = hvd.allgather(flat(model).reshape(1, -1), process_set=process_set)
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))
