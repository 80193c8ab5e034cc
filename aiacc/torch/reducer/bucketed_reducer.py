"""Reduces gradients in batches, each of which is submitted when its last gradient is there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from aiacc import _core
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import device_of
from aiacc.torch.ops.tensor_list import group_view_of
from aiacc.torch.reducer.consensus import answer_of_first, everywhere
from aiacc.torch.reducer.reducer import GradientReducer, NamedParameters, ReductionOptions


class BatchReducer(GradientReducer):
    """What reducers of batches have in common. Parameters in no batch are submitted singly."""

    def __init__(
        self,
        named_parameters: NamedParameters,
        options: ReductionOptions,
        backward_passes_per_step: int,
    ) -> None:
        """Start without batches; a subclass gives them to `_set_batches`."""
        #: Whether the end of this step is to agree on batches.
        self._undecided = True
        self._batches: list[list[int]] = []
        self._batch_of: dict[int, int] = {}
        #: By batch: gradients that are still to come in this step; 0 once it was submitted.
        self._awaited: list[int] = []
        super().__init__(named_parameters, options, backward_passes_per_step)

    def _set_batches(self, batches: Sequence[Sequence[int]]) -> None:
        """Form these batches of parameter numbers. Not while gradients are under way."""
        self._batches = [list(batch) for batch in batches]
        self._batch_of = {
            index: number for number, batch in enumerate(self._batches) for index in batch
        }
        self._start_step()

    def reset(self) -> None:
        """See `GradientReducer.reset`. Ranks that come anew have no batches, so start without."""
        self._set_batches([])
        self._undecided = True
        super().reset()

    def finish(self) -> None:
        """See `GradientReducer.finish`; may agree with the other ranks on batches for later steps.

        Raises:
            ValueError: The ranks have different parameters.
        """
        try:
            super().finish()
        finally:  # whatever failed here need not have failed on the other ranks
            if self._undecided and self._hooks:
                self._undecided = False
                self._agree()

    def _agree(self) -> None:
        """Form batches that are the same on all ranks, who all call this."""
        raise NotImplementedError

    def _submit_batch(self, number: int) -> None:
        raise NotImplementedError

    def _accumulated(self, index: int) -> None:
        """A backward pass has computed this gradient; called once per pass, before the rest."""

    def _start_step(self) -> None:
        super()._start_step()
        self._awaited[:] = [len(batch) for batch in self._batches]

    def _hook(self, index: int, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        left = self._left

        def hook(parameter: torch.Tensor) -> None:
            passes = left[index] - 1
            if passes < 0:
                raise self._overrun(index)
            self._accumulated(index)
            if passes:
                left[index] = passes
            else:
                self._arrived(index)

        return hook

    def _arrived(self, index: int) -> None:
        number = self._batch_of.get(index)
        if number is None:
            self._submit(index)
            return
        self._left[index] = 0
        self._awaited[number] -= 1
        if self._awaited[number] == 0:
            self._submit_batch(number)
            if not any(self._awaited):
                _core.flush()

    def _submit_missing(self) -> Exception | None:
        failure: Exception | None = None
        for index in self._hooks:
            if self._left[index] == 0:
                continue
            try:
                if index not in self._batch_of:
                    self._submit_what_is_there(index)
                    continue
                if self._parameters[index].grad is None:
                    self._fill(index)
                else:
                    self._accumulated(index)
                self._arrived(index)
            except (CollectiveError, ValueError) as error:
                failure = failure or error
        return failure

    def _fill(self, index: int) -> None:
        """Put zeros in the place of a gradient that is missing."""
        raise NotImplementedError


class GroupReducer(BatchReducer):
    """Reduces groups of gradients, each in one operation, as the user chose them.

    Of a number of groups the first step only agrees on the order of parameters, that of the first
    rank, and reduces gradients singly; parameters that come later stay single. An operation is on
    one GPU: such a group with parameters on several is one group for each.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        options: ReductionOptions,
        backward_passes_per_step: int,
        groups: int | list[list[int]],
    ) -> None:
        """Form ``groups``: so many, or lists of parameter numbers."""
        self._wanted = groups
        #: Zeros of frozen parameters by number, and what to do when they are reduced.
        self._stand_ins: dict[int, tuple[torch.Tensor, Callable[[], None] | None]] = {}
        super().__init__(named_parameters, options, backward_passes_per_step)
        self._form_chosen()

    def arguments(self) -> tuple[Any, ...]:
        """See `GradientReducer.arguments`."""
        return *super().arguments(), self._wanted

    def reset(self) -> None:
        """See `GradientReducer.reset`."""
        super().reset()
        self._form_chosen()

    def _form_chosen(self) -> None:
        if not isinstance(self._wanted, int):
            self._undecided = False
            groups = [[index for index in group if index in self._hooks] for group in self._wanted]
            self._set_batches([group for group in groups if group])

    def _agree(self) -> None:
        assert isinstance(self._wanted, int)
        number_of = {self._names[index]: index for index in self._hooks}
        places = numbered({name: device_of(self._parameters[i]) for name, i in number_of.items()})
        process_set = self._options.process_set
        names, agreed = answer_of_first((list(number_of), places), "order_of_groups", process_set)
        if not everywhere(places == agreed, "names_of_groups", process_set):
            raise ValueError(
                f"groups={self._wanted}: the ranks optimize parameters of different names, or have "
                "divided them among their GPUs in different ways (expected the same everywhere); "
                "pass the same named_parameters, of the same model, on every rank"
            )
        groups = split_evenly([number_of[name] for name in names], self._wanted)
        devices = [device_of(parameter) for parameter in self._parameters]
        self._set_batches([part for group in groups for part in divided(group, devices)])

    def _start_step(self) -> None:
        super()._start_step()
        self._stand_ins.clear()  # what a failure may have left

    def _fill(self, index: int) -> None:
        self._stand_ins[index] = self._zeros(index)

    def _submit_batch(self, number: int) -> None:
        gradients: list[torch.Tensor] = []
        after: list[Callable[[], None]] = []
        for index in self._batches[number]:
            gradient, then = (
                self._stand_ins.pop(index)
                if index in self._stand_ins
                else (self._dense(index), None)
            )
            gradients.append(gradient)
            after += [] if then is None else [then]
        sent, restore, wire = self._to_send(gradients)
        after = after if restore is None else [restore, *after]
        name = self._names[self._batches[number][0]]
        view = group_view_of(sent, f"gradients in the group of {name!r}")
        handle = self._prepared(name, view.spec, wire).start(
            view.addresses, view.addresses, view.stream
        )

        def finish() -> None:
            for step in after:
                step()

        self._in_flight.append((handle, sent, finish if after else None))


def numbered(places: Mapping[str, Hashable]) -> dict[str, int]:
    """A number for the place of every name: equal on ranks that have divided the names alike."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(places[name], len(numbers)) for name in sorted(places)}


def divided(group: list[int], places: Sequence[Hashable]) -> list[list[int]]:
    """``group`` in parts whose members have the same of ``places``, in order of appearance."""
    parts: dict[Hashable, list[int]] = {}
    for index in group:
        parts.setdefault(places[index], []).append(index)
    return list(parts.values())


def split_evenly(items: list[int], parts: int) -> list[list[int]]:
    """``items`` in at most ``parts`` runs whose lengths differ by at most one; none is empty."""
    length, longer = divmod(len(items), parts)
    starts = [number * length + min(number, longer) for number in range(parts + 1)]
    runs = [items[begin:end] for begin, end in pairwise(starts)]
    return [run for run in runs if run]
