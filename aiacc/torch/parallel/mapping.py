"""`parallel_map`: a function of every tensor, divided among ranks where that is faster."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from aiacc import arguments, basics
from aiacc.collectives.objects import maxima
from aiacc.planning.division.decision import Decision, Division, decide, predict
from aiacc.planning.division.placement import Waves, in_waves, longest_first
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size, set_id
from aiacc.torch.parallel.exchange import Result, check_result, compute_and_exchange
from aiacc.torch.parallel.kind import Cost, Kind, agree, kind_of, say_wrong
from aiacc.torch.parallel.network import Networks

#: Calls whose times a decision follows from, divided and not in turn: the best of each, for the
#: first one warms caches up and others may be disturbed.
MEASURED = 5
#: Waves of calls before costs are known.
_WAVES = 4
_COST = arguments.or_none(
    arguments.Rule(
        "a list of numbers, or a function of a tensor",
        lambda cost: (
            callable(cost)
            or (
                isinstance(cost, Collection)
                and arguments.is_listing(cost)
                and all(map(arguments.is_number, cost))
            )
        ),
    )
)
#: Kinds of calls that are remembered.
_REMEMBERED = 256


class Mapped(list[Result]):
    """Results in the order of the tensors.

    Attributes:
        decision: Who has computed them, and why.
    """

    def __init__(self, results: Iterable[Result], decision: Decision) -> None:
        """Hold ``results``."""
        super().__init__(results)
        self.decision = decision


class _History:
    """What is known of a kind of calls; the same on all ranks."""

    def __init__(self) -> None:
        self.calls = 0
        #: Least seconds of each tensor, and bytes of its result, once they were measured.
        self.loads: list[float] | None = None
        self.nbytes: list[float] = []
        #: Of each call that was measured and not divided, its seconds on this rank.
        self.serial: list[float] = []
        #: Of each divided one, its seconds and its waves.
        self.seconds: list[float] = []
        self.waves: list[Waves] = []
        self.decision: Decision | None = None
        self.division: Division | None = None


class _Memory:
    """Of this job."""

    def __init__(self) -> None:
        self.kinds: OrderedDict[Kind, _History] = OrderedDict()
        basics.at_init(self.forget)

    def forget(self) -> None:
        """What was measured, for another job begins."""
        self.kinds.clear()

    def history(self, kind: Kind) -> _History:
        """Of this kind."""
        found = self.kinds.pop(kind, None) or _History()
        self.kinds[kind] = found
        if len(self.kinds) > _REMEMBERED:
            self.kinds.popitem(last=False)
        return found

    def communicates(self, name: str, process_set: int) -> bool:
        """Whether a call of this name begins with an exchange, if it is like the last one."""
        for kind, history in reversed(self.kinds.items()):
            if (kind.name, kind.process_set) == (name, process_set):
                return history.decision is None or history.decision.divided
        return True


_memory = _Memory()
_networks = Networks()


def parallel_map(
    tensors: Iterable[torch.Tensor],
    function: Callable[[torch.Tensor], Result],
    *,
    cost: Cost | None = None,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    divide: bool | None = None,
) -> Mapped:
    """``[function(tensor) for tensor in tensors]``, of which every rank computes a part.

    For tensors that all ranks have alike, and a function that takes long: inverses of factors,
    Newton-Schulz iterations. Results of early tensors travel while later ones are computed. The
    first five calls of a kind (name, function, shapes and dtypes) are timed, the first, third and
    fifth of them divided, and so are some all-gathers; then all ranks decide alike, by the longest
    processing time and a model of the exchange, whether dividing pays; if not, later calls compute
    everything and communicate nothing. The first rank of the set says so in a line, and the result
    in ``decision``.

    The results are those of a serial loop bit by bit, if ``function`` gives the same on all ranks.
    Results of other ranks are views of a few buffers, contiguous, without gradient.

    Collective: every rank of the set, with as many tensors of the same shapes, dtypes and values,
        the same function and costs, in the same order of calls. Not while a rank has joined.
    Blocks: until all results are there.

    Args:
        tensors: On one device, of any shapes and dtypes; not written to.
        function: Of one tensor, alike on all ranks; returns a tensor on that device, or a tuple of
            tensors, of any shapes and dtypes. It does not communicate. Gradients are off in it.
        cost: Seconds of each tensor, or anything in proportion to them, as a list or a function of
            the tensor (by its shape, not by its values). None: in proportion to elements. Only
            matters until costs were measured.
        process_set: Ranks that share the work.
        name: Pairs this call with those of the other ranks, and tells kinds of calls apart. None:
            "parallel_map".
        divide: True or False: divide always or never, whatever pays.

    Returns:
        The results, with the `Decision` as ``decision``.

    Raises:
        ValueError: Tensors on several devices; costs that are negative, no numbers or not as many.
        TypeError: Something that is no tensor, or an argument of another type. Whatever is wrong on
            one rank is a MismatchError on the others.
        ParallelMapError: The function has raised on a rank, which the text names: on all ranks. In
            a call that is not divided it raises as it is, where it does; so does KeyboardInterrupt
            in every call.
        MismatchError: Ranks gave other tensors, functions or costs.
        CollectiveError: Not initialised, or a collective operation failed.
    """
    arguments.check({"name": name, "process_set": process_set})
    place = rank_and_size(process_set)
    name = name or "parallel_map"
    try:
        arguments.check(
            {"tensors": tensors, "function": function, "cost": cost, "divide": divide},
            tensors=arguments.of(Iterable, "a list of tensors"),
            function=arguments.FUNCTION,
            cost=_COST,
        )
        given = list(tensors)
        kind = kind_of(given, function, cost, process_set, name, divide)
    except Exception as error:  # the other ranks wait for this one
        others_wait = _memory.communicates(name, set_id(process_set))
        if place.size > 1 and divide is not False and others_wait:
            say_wrong(name, error, process_set)
        raise
    with torch.no_grad():
        if place.size == 1 or divide is False:
            reason = "divide=False" if divide is False else "there is one rank"
            return _serial(given, function, Decision(False, reason, place.size))
        history = _memory.history(kind)
        if history.decision is not None and not history.decision.divided:
            return _serial(given, function, history.decision)
        agree(kind, process_set)
        if not given:
            return _serial(given, function, Decision(False, "no tensors", place.size))
        if history.decision is None:
            history.calls += 1
            if divide is None and history.calls % 2 == 0:
                return _timed(given, function, history, place.size)
        mapped = _divided(given, function, kind, history, process_set)
        if history.decision is None and history.calls >= MEASURED:
            _decide(kind, history, given[0], process_set)
        return mapped


def _serial(
    tensors: Sequence[torch.Tensor], function: Callable[[torch.Tensor], Result], decision: Decision
) -> Mapped:
    results = [function(tensor) for tensor in tensors]
    for tensor, result in zip(tensors, results, strict=True):  # a script that runs alone runs here
        check_result(result, tensor.device)
    return Mapped(results, decision)


def _timed(
    tensors: Sequence[torch.Tensor],
    function: Callable[[torch.Tensor], Result],
    history: _History,
    size: int,
) -> Mapped:
    """All of it, as it would be if it were not divided: all ranks are at it at a time."""
    began = time.perf_counter()
    try:
        mapped = _serial(tensors, function, Decision(False, "measures", size))
        if tensors[0].is_cuda:
            torch.cuda.synchronize(tensors[0].device)
        return mapped
    finally:  # also if it raises, here or there: the ranks exchange these numbers later
        history.serial.append(time.perf_counter() - began)


def _divided(
    tensors: Sequence[torch.Tensor],
    function: Callable[[torch.Tensor], Result],
    kind: Kind,
    history: _History,
    process_set: ProcessSet,
) -> Mapped:
    size = rank_and_size(process_set).size
    if history.division is not None:
        owners, waves = history.division.owners, history.division.waves
    else:
        loads = history.loads or kind.weights
        owners = longest_first(loads, size)
        waves = in_waves(loads, owners, size, _WAVES)
    measuring = history.decision is None
    began = time.perf_counter()
    exchanged = compute_and_exchange(
        lambda item: function(tensors[item]),
        owners,
        waves,
        tensors[0],
        name=kind.name,
        process_set=process_set,
        describe=lambda item: f"tensor {item} of shape {tuple(tensors[item].shape)}",
        timed=measuring,
    )
    decision = history.decision or Decision(True, "measures", size, owners, len(waves))
    if measuring:
        before = history.loads or exchanged.seconds
        history.loads = [min(*pair) for pair in zip(before, exchanged.seconds, strict=True)]
        history.nbytes = list(map(float, exchanged.nbytes))
        history.seconds.append(time.perf_counter() - began)
        history.waves.append(waves)
    return Mapped(exchanged.results, decision)


def _decide(kind: Kind, history: _History, like: torch.Tensor, process_set: ProcessSet) -> None:
    """Settle how later calls are computed. Collective."""
    assert history.loads is not None
    size = rank_and_size(process_set).size
    network = _networks.cost(process_set, like)
    measured = history.seconds + history.serial
    slowest = maxima(measured, f"{kind.name}.slowest", process_set)
    divided, serial = slowest[: len(history.seconds)], slowest[len(history.seconds) :]
    beyond = [
        seconds - predict(waves, history.loads, history.nbytes, network)[1]
        for seconds, waves in zip(divided, history.waves, strict=True)
    ]
    decision, division = decide(
        history.loads,
        size,
        history.nbytes,
        network,
        kind.divide,
        max(0.0, min(beyond)),
        min(serial) if serial else None,
    )
    history.decision, history.division = decision, division
    if rank_and_size(process_set).rank == 0:
        sys.stderr.write(f"aiacc: {kind.name}: {decision.reason}\n")
