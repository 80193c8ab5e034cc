"""The parameters of an optimizer in segments, and its state in those of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from aiacc.collectives.objects import gather_objects
from aiacc.collectives.reduce_ops import Min
from aiacc.process_sets import ProcessSet
from aiacc.torch.decoupled.exchange import Exchange
from aiacc.torch.decoupled.gradient import Reduced, Unreduced, seen
from aiacc.torch.decoupled.state import Form, Piece, State, cut, join
from aiacc.torch.mpi_ops import allreduce_
from aiacc.torch.reducer.places import is_at, put
from aiacc.torch.reducer.storage import strides_in

_LOAD = "load_state_dict() of a whole state, on every rank, gives them one"


def all_parameters(groups: Sequence[Mapping[str, Any]]) -> list[list[torch.Tensor]]:
    """Of each parameter group."""
    return [list(group["params"]) for group in groups]


class Owned(NamedTuple):
    """A segment of this rank."""

    #: What the optimizer updates.
    segment: nn.Parameter
    #: Where it is in its bucket, and its reduced gradient. Nobody else has these two.
    place: torch.Tensor
    gradient: torch.Tensor
    #: What it has as ``grad`` before that is reduced.
    unreduced: torch.Tensor
    #: The parameter that it is of.
    parameter: torch.Tensor


class Shards:
    """Which segments this rank updates, and where the whole state is.

    The whole state is known after it was loaded or collected, until the next step.
    """

    def __init__(self, groups: list[list[torch.Tensor]], process_set: ProcessSet) -> None:
        """Of an optimizer with these parameters by group, of which no rank has a part yet."""
        self._groups = groups
        self._process_set = process_set
        self._forms: list[Form] = []  # of all parameters, as the exchange has them
        self._frozen: list[torch.Tensor] = []  # of no exchange
        self._exchange: Exchange | None = None
        self._pieces: list[list[Piece]] = []  # of this rank, by group
        self._segments: list[Owned] = []
        #: Has the only gradient, of one zero, where this rank has no other: every rank has one to
        #: see whether it is finite. Last in the last group, and in no state that is whole.
        self._stand_in: nn.Parameter | None = None
        self._whole: State | None = None
        #: State that no rank has a part of: that of frozen parameters.
        self._rest: State = {}
        self._steps = 0
        self._lost = False

    def attach(
        self, groups: Sequence[dict[str, Any]], state: dict[Any, Any], exchange: Exchange
    ) -> None:
        """Put the segments of this rank, and their state, in the place of parameters."""
        self._exchange = exchange
        parameters = [parameter for group in self._groups for parameter in group]
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        self._forms = [Form(tuple(p.shape), strides_in(p)) for p in parameters]
        self._pieces = self._pieces_of(exchange, exchange.rank)
        segment_of = self._segments_of(exchange)
        whole = self._packed({"param_groups": groups}, self._by_number(state))
        self._segments = []
        for group, pieces in zip(groups, self._pieces, strict=True):
            mine = [segment_of[piece] for piece in pieces]
            group["params"] = [owned.segment for owned in mine]
            self._segments += mine
        first = exchange.named[0][1]
        self._stand_in = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=first.device))
        groups[-1]["params"].append(self._stand_in)
        self.drop_gradients()
        part = self.cut(whole)["state"]
        lost = self._lost
        self.loaded(whole)
        self._lost = lost
        state.clear()
        state.update((self._segments[n].segment, entries) for n, entries in part.items())

    def _pieces_of(self, exchange: Exchange, rank: int) -> list[list[Piece]]:
        """What ``rank`` has of the parameters, by group."""
        numbers = self._numbers()
        of_exchange = [numbers[id(parameter)] for _, parameter in exchange.named]
        pieces_of: dict[int, list[Piece]] = {}
        for bucket in exchange.buckets:
            for segment in bucket.layout.segments(rank):
                number = of_exchange[bucket.members[segment.member]]
                piece = Piece(number, segment.begin, segment.end)
                pieces_of.setdefault(number, []).append(piece)
        by_group = [[numbers[id(p)] for p in group] for group in self._groups]
        return [[piece for n in group for piece in pieces_of.get(n, ())] for group in by_group]

    def _segments_of(self, exchange: Exchange) -> dict[Piece, Owned]:
        numbers = self._numbers()
        segment_of = {}
        for bucket in exchange.buckets:
            for segment in bucket.layout.segments(exchange.rank):
                parameter = exchange.named[bucket.members[segment.member]][1]
                piece = Piece(numbers[id(parameter)], segment.begin, segment.end)
                place, gradient = bucket.own(segment)
                unreduced = seen(gradient, Unreduced)
                segment_of[piece] = Owned(
                    nn.Parameter(place), place, gradient, unreduced, parameter
                )
        return segment_of

    def _numbers(self) -> dict[int, int]:
        return {id(p): n for n, p in enumerate(p for group in self._groups for p in group)}

    def _by_number(self, state: Mapping[Any, Any]) -> State:
        numbers = self._numbers()
        return {numbers[id(p)]: entries for p, entries in state.items() if id(p) in numbers}

    def detach(self, groups: Sequence[dict[str, Any]], state: dict[Any, Any]) -> None:
        """Put the parameters back, and their state into ``state``, which is empty if it is lost."""
        for group, parameters in zip(groups, self._groups, strict=True):
            group["params"] = parameters
        self._lost = self._lost or (self._whole is None and self._steps > 0)
        self._segments, self._exchange, self._stand_in = [], None, None
        parameters = [parameter for group in self._groups for parameter in group]
        state.clear()
        state.update((parameters[n], entries) for n, entries in (self._whole or {}).items())

    def owned(self) -> list[torch.Tensor]:
        """What groups have in the place of parameters."""
        stand_in = () if self._stand_in is None else (self._stand_in,)
        return [*(owned.segment for owned in self._segments), *stand_in]

    # --- gradients

    def gradients(self) -> list[torch.Tensor]:
        """Reduced ones of this rank's segments, after `put_gradients`; one at least."""
        given = [owned.segment.grad for owned in self._segments]
        if self._stand_in is not None:
            given.append(self._stand_in.grad)
        return [seen(gradient, torch.Tensor) for gradient in given if gradient is not None]

    def put_gradients(self, dropped: Collection[int]) -> None:
        """Let the optimizer see the gradients that this rank has got.

        A parameter may be frozen on this rank only. If it is everywhere, no step shall touch it,
        unless it has kept a gradient, of zeros perhaps.

        Args:
            dropped: As of `leave_out`.
        """
        for segment, _, gradient, _, parameter in self._segments:
            wanted = parameter.requires_grad or parameter.grad is not None or bool(gradient.any())
            segment.grad = seen(gradient, Reduced) if wanted else None  # may be given other memory
        self.leave_out(dropped)
        if self._stand_in is not None:
            self._stand_in.grad = None
            if not self.gradients():
                self._stand_in.grad = torch.zeros_like(self._stand_in)

    def leave_out(self, dropped: Collection[int]) -> None:
        """Let the optimizer see no gradients of parameters with these ids."""
        if dropped:
            for owned in self._segments:
                if id(owned.parameter) in dropped:
                    owned.segment.grad = None

    def show_gradients(self) -> None:
        """To the wrapped class, whose fast functions take tensors of no class but torch's own."""
        self._see_gradients(Reduced, torch.Tensor)

    def guard_gradients(self) -> None:
        """Undo `show_gradients`."""
        self._see_gradients(torch.Tensor, Reduced)

    def _see_gradients(self, before: type[torch.Tensor], now: type[torch.Tensor]) -> None:
        for owned in self._segments:
            if type(owned.segment.grad) is before:
                owned.segment.grad.__class__ = now

    def drop_gradients(self) -> None:
        """After a step: whoever looks for gradients before they are reduced is told."""
        for owned in self._segments:
            owned.segment.grad = owned.unreduced
        if self._stand_in is not None:
            self._stand_in.grad = seen(torch.zeros_like(self._stand_in), Unreduced)

    def bring_back(self) -> None:
        """Before the gathers: an optimizer may have given what it updates other memory."""
        for segment, place, *_ in self._segments:
            if not is_at(segment, place):
                put(segment.detach(), place)
                segment.data = place

    def fault(self) -> str:
        """Why no step can be done; "" if it can."""
        if self._lost:
            return (
                "the state of the optimizer was spread over ranks that are gone (expected the same "
                f"ranks as before); {_LOAD}"
            )
        if any(parameter.requires_grad for parameter in self._frozen):
            return (
                "parameters that were frozen when the optimizer was made, or the job began, are "
                "not any more (expected the same ones, with schedule='decoupled'); make the "
                "DistributedOptimizer anew after requires_grad_(), or use schedule='all_reduce'"
            )
        return ""

    # --- state

    def changed(self) -> None:
        """A step changes the state."""
        self._whole = None
        self._steps += 1

    def cut(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """This rank's part of a whole state; ValueError if it is of other parameters."""
        part: dict[str, Any] = cut(state_dict, self._pieces, self._forms)
        part["param_groups"][-1]["params"].append(len(self._segments))
        return part

    def loaded(self, state_dict: Mapping[str, Any]) -> None:
        """The whole state is known until the next step."""
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        state = state_dict["state"]
        self._whole = {n: state[name] for n, name in enumerate(names) if name in state}
        numbers = self._numbers()
        assert self._exchange is not None
        have_pieces = {numbers[id(p)] for _, p in self._exchange.named if p.numel()}
        self._rest = {n: entries for n, entries in self._whole.items() if n not in have_pieces}
        self._lost = False
        self._steps = 0

    def consolidate(self, packed: dict[str, Any], to: int | None) -> None:
        """Collect the state on rank ``to`` of the process set, or on all. Collective, blocks."""
        exchange = self._exchange
        assert exchange is not None
        size = exchange.size
        if to is not None and to not in range(size):
            raise ValueError(f"to={to!r} (expected None or a rank, 0 to {size - 1})")
        known = self._whole is not None or (to is not None and to != exchange.rank)
        numbers = [int(known), int(not self._lost), self._steps, -self._steps]
        facts = torch.tensor(numbers, device="cpu")
        allreduce_(facts, None, "decoupled_state", Min, process_set=self._process_set)
        all_know, none_lost, least, most = facts.tolist()
        if not none_lost or least != -most:
            what = f"ranks that have done {least} to {-most} steps" if none_lost else "ranks anew"
            raise ValueError(
                f"the state of the optimizer is of {what} (expected as many steps on every rank); "
                f"{_LOAD}"
            )
        if all_know:
            return
        state = _on_host(packed["state"])
        parts = gather_objects(state, "decoupled_state", self._process_set, to)
        if to is None or to == exchange.rank:
            of_ranks = [self._pieces_of(exchange, rank) for rank in range(size)]
            pieces = [[piece for group in groups for piece in group] for groups in of_ranks]
            self._whole = {**self._rest, **join(parts, pieces, self._forms)}

    def whole(self, packed: dict[str, Any]) -> dict[str, Any]:
        """The ``state_dict`` of whole parameters.

        Raises:
            RuntimeError: It is not known on this rank.
        """
        if self._whole is None:
            raise RuntimeError(
                "state_dict() with schedule='decoupled', whose state is spread over the ranks "
                "(expected it collected here since the last step); call "
                "optimizer.consolidate_state_dict() on every rank before, with to=None if every "
                "rank needs it"
            )
        return self._packed(packed, self._whole)

    def _packed(self, packed: dict[str, Any], whole: State) -> dict[str, Any]:
        """``packed``, the ``state_dict`` of segments, with the numbers of parameters."""
        first, groups = 0, []
        for group, parameters in zip(packed["param_groups"], self._groups, strict=True):
            numbers = list(range(first, first + len(parameters)))
            groups.append({**group, "params": numbers})
            first += len(parameters)
        return {**packed, "state": dict(whole), "param_groups": groups}


def _on_host(value: Any) -> Any:
    """``value`` with copies of its tensors in host memory, which have no more than themselves."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _on_host(entry) for key, entry in value.items()}
    return value
