"""The gradients of parameters, from the form that autograd gave them to that which is reduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from aiacc.torch.adapter import refusal
from aiacc.torch.ops import sparse
from aiacc.torch.reducer.places import bring_back

NamedParameters: TypeAlias = Sequence[tuple[str, torch.Tensor]]


class Form(NamedTuple):
    """How a gradient travels on one rank."""

    #: Sparse dimensions; 0: it is dense.
    dims: int
    #: Whether something stands in for it.
    missing: bool


class Gradients:
    """Gradients by the number of their parameter: where they are, and which there are none of.

    Attributes:
        names: By number.
        parameters: By number.
        views: Where gradients are to be that have no memory of their own.
        sparse: Sparse dimensions of those that have been sparse: they have no form of zeros. Others
            that are sparse are made dense to travel.
        made_dense: Sparse dimensions of these, with which the optimizer gets them.
        expected: Sparse dimensions of those that no rank has had yet, or 0: dense.
        missing: Those that this rank does not have in this step.
        copied: Elements that `move` has copied in host memory in this step.
    """

    def __init__(self, sparse_as_dense: bool) -> None:
        """Start without any; ``sparse_as_dense``: let none travel sparse."""
        self.names: list[str] = []
        self.parameters: list[torch.Tensor] = []
        self.views: dict[int, torch.Tensor] = {}
        #: What else has their memory, which they may lose.
        self._places: dict[int, torch.Tensor] = {}
        self.sparse: dict[int, int] = {}
        self.made_dense: dict[int, int] = {}
        self.expected = 0
        self.missing: set[int] = set()
        self.copied = 0
        self._sparse_as_dense = sparse_as_dense
        #: Zeros in the place of gradients that frozen parameters do not have in this step.
        self._stand_ins: dict[int, torch.Tensor] = {}

    def of(self, members: Sequence[int]) -> list[torch.Tensor]:
        """What is to be reduced for gradients in memory of their own; one alone may be sparse.

        Raises:
            ValueError: A sparse gradient among several.
        """
        tensors = []
        for index in members:
            parameter = self.parameters[index]
            if parameter.grad is None and index not in self._stand_ins:
                self.complete(index)  # another hook has dropped it
            tensor = parameter.grad
            if tensor is None and index in self.sparse:
                tensor = sparse.empty_like(parameter, self.sparse[index])
            elif tensor is None:
                tensor = self._stand_ins[index]
            elif len(members) > 1 or self._sparse_as_dense:
                tensor = self._dense(index)
            tensors.append(tensor)
        return tensors

    def move(self, index: int) -> None:
        """Bring a gradient to its view, if it has one.

        That is a copy where the parameter had no gradient before the backward pass, which takes
        less time than to clear the view and to add to it. Otherwise autograd has added to the view.
        """
        parameter, view = self.parameters[index], self.views.get(index)
        if view is None:
            return
        self._bring_back(index, view)
        if parameter.grad is None:  # another hook has dropped it
            self.complete(index)
        elif parameter.grad is not view:
            gradient = self._dense(index).detach()
            if gradient.dtype != view.dtype:
                raise self._moved(index, gradient, view)
            view.copy_(gradient)
            parameter.grad = view
            if view.is_cpu:
                self.copied += view.numel()

    def leave(self) -> dict[int, torch.Tensor]:
        """Give up the views, which these are."""
        views = dict(self.views)
        self.views.clear()
        self._places.clear()
        return views

    def place(self, views: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Let gradients be these views of their buckets' memory from now on."""
        for index, view in views:
            self.views[index] = view
            self._places[index] = view.detach()

    def _bring_back(self, index: int, view: torch.Tensor) -> None:
        """Let a view be of its bucket again, with what it has, if it was given other memory."""
        if not bring_back(view, self._places[index]):
            raise self._moved(index, view, self._places[index])

    def _moved(self, index: int, now: torch.Tensor, before: torch.Tensor) -> ValueError:
        return ValueError(
            f"the gradient of {self.names[index]!r} is of {now.dtype} on {now.device} now "
            f"(expected {before.dtype} on {before.device}, as its bucket); make the optimizer "
            "after the model was moved or converted"
        )

    def complete(self, index: int) -> None:
        """Let a gradient take part that the backward pass may not have given: another rank's may.

        What there is of it takes part as it is, otherwise zeros do.
        """
        parameter = self.parameters[index]
        if parameter.grad is not None:
            self.move(index)
            return
        self.missing.add(index)
        if index not in self.sparse:
            view = self.views.get(index)
            if view is not None:
                self._bring_back(index, view)
            zeros = (
                torch.zeros_like(parameter, requires_grad=False) if view is None else view.zero_()
            )
            if parameter.requires_grad:
                parameter.grad = zeros
            else:
                self._stand_ins[index] = zeros

    def form(self, index: int) -> Form:
        """That of a gradient which has left."""
        gradient = self.parameters[index].grad
        if gradient is None or index in self.missing:
            return Form(self.sparse.get(index, 0), True)
        return Form(0 if gradient.layout is torch.strided else gradient.sparse_dim(), False)

    def stand_in(self, index: int, dims: int) -> None:
        """Let what travels in the place of a missing gradient have so many sparse dimensions."""
        self.parameters[index].grad = None
        self._stand_ins.pop(index, None)
        if dims > 0:
            self.sparse[index] = dims
        else:
            self.sparse.pop(index, None)
            self.complete(index)

    def expect_sparse(self) -> None:
        """Let gradients that no rank has had yet be sparse, as those of embeddings are."""
        self.expected = 1
        if not self._sparse_as_dense:
            for index in range(len(self.parameters)):
                self.sparse.setdefault(index, self.expected)

    def adopting(self, members: Sequence[int]) -> Callable[[], None] | None:
        """Gives frozen parameters the gradients that other ranks gave them, once they are reduced.

        A parameter may be frozen on this rank only. If it is everywhere, no step shall touch it.
        """
        reduced = [
            (self.parameters[index], self._stand_ins.pop(index))
            for index in members
            if index in self._stand_ins
        ]
        if not reduced:
            return None

        def adopt() -> None:
            for parameter, gradient in reduced:
                if gradient.any():
                    parameter.grad = gradient

        return adopt

    def end_step(self) -> None:
        """Give the optimizer gradients of the layout that autograd gave: some take no other."""
        self._stand_ins.clear()  # what a failure may have left
        for index, sparse_dim in self.made_dense.items():
            parameter = self.parameters[index]
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                parameter.grad = parameter.grad.detach().to_sparse(sparse_dim)

    def _dense(self, index: int) -> torch.Tensor:
        """A gradient, which this makes dense if it has to."""
        parameter = self.parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            if not self._sparse_as_dense:
                raise refusal(gradient, f"gradient of {self.names[index]!r}")
            self.made_dense[index] = gradient.sparse_dim()
            gradient = parameter.grad = gradient.to_dense()
        return gradient


def checked_names(named_parameters: object) -> list[tuple[str, torch.Tensor]]:
    """What a user has passed as ``named_parameters``.

    Raises:
        ValueError: It is something else, a model perhaps, or has a name twice.
    """
    if not isinstance(named_parameters, Iterable):
        raise ValueError(
            f"named_parameters={named_parameters!r:.100} (expected (name, parameter) of each "
            "parameter); pass model.named_parameters()"
        )
    named = list(named_parameters)
    for entry in named:
        if not (
            isinstance(entry, tuple)
            and len(entry) == 2
            and isinstance(entry[0], str)
            and isinstance(entry[1], torch.Tensor)
        ):
            raise ValueError(
                f"named_parameters contains {entry!r:.100} (expected (name, parameter)); "
                "pass model.named_parameters()"
            )
    twice = sorted(name for name, n in Counter(name for name, _ in named).items() if n > 1)
    if twice:
        raise ValueError(
            f"named_parameters contains {', '.join(twice)} more than once (expected unique names); "
            "give each model a prefix of its own"
        )
    return named


def too_many_passes(name: str, passes: int) -> AssertionError:
    """A gradient came once more than the optimizer was told."""
    return AssertionError(
        f"gradient of {name!r} was computed more than backward_passes_per_step={passes} times "
        "before step() (expected no more); increase backward_passes_per_step to accumulate "
        "gradients locally; if fewer passes came before, as at the end of an epoch, call "
        "optimizer.step() or optimizer.zero_grad() after them; if torch.utils.checkpoint runs a "
        "module twice, pass it use_reentrant=False; if another DistributedOptimizer has the same "
        "parameters, delete it"
    )
