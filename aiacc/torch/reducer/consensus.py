"""What the ranks have to agree on: gradients that share buckets, numbers of objects."""

from __future__ import annotations

import math
import warnings
import weakref
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from aiacc import basics
from aiacc.collectives.objects import broadcast_object, maxima, new_number, sums
from aiacc.collectives.reduce_ops import Min, Sum
from aiacc.process_sets import ProcessSet, first_rank
from aiacc.torch.adapter import device_of
from aiacc.torch.mpi_ops import allreduce_
from aiacc.torch.reducer.gradients import Form, Gradients, NamedParameters
from aiacc.torch.reducer.identity import Identity
from aiacc.torch.reducer.options import Asked, ReductionOptions
from aiacc.torch.reducer.plan import Gradient, Plan, checked, numbered
from aiacc.torch.reducer.storage import own_memory, strides_in, views_pay

#: What the fields of Asked are called, and what helps where they differ.
_ARGUMENTS = Asked("plans, groups or buckets", "compression", "sparse_as_dense")
_REMEDIES = Asked(
    "pass the same plan, loaded from one file or by broadcast_object, groups and "
    "gradient_as_bucket_view on every rank",
    "pass the same compression on every rank",
    "pass the same sparse_as_dense on every rank",
)


class Numbers:
    """By which the ranks of a process set tell objects apart in names of operations.

    They agree when they use an object first in a job. It is kept alive by somebody else.
    """

    def __init__(self, name: str) -> None:
        """Agree under this name, which no other kind of objects has."""
        self._name = name
        self._known: weakref.WeakKeyDictionary[ProcessSet, WeakIdKeyDictionary]
        self._known = weakref.WeakKeyDictionary()
        basics.at_init(self._forget)

    def of(self, one: object, process_set: ProcessSet) -> int:
        """Number of a tensor or module.

        Collective: every rank of the set, the first time, in the same order of objects.
        Blocks: then, until all have answered.
        """
        numbers = self._known.setdefault(process_set, WeakIdKeyDictionary())
        if one not in numbers:
            numbers[one] = new_number(self._name, process_set)
        return int(numbers[one])

    def _forget(self) -> None:
        """There may be ranks that come anew."""
        self._known.clear()


def describe(named: NamedParameters) -> list[Gradient]:
    """What a planner is to know of the gradients of these parameters."""
    keys = numbered({name: device_of(parameter) for name, parameter in named})
    return [
        Gradient(name, p.numel(), p.element_size(), str(p.dtype), keys[name]) for name, p in named
    ]


def check_optimizers(argument: str, identity: Identity | None, process_set: ProcessSet) -> None:
    """Whether this is a step of the same optimizer on all ranks, with the same operations.

    Collective: every rank of the process set, in the first step of an optimizer, before it waits
    for gradients; those that have joined agree with all.
    Blocks: until all have answered.

    Args:
        argument: What decides on the operations of a step.
        identity: Of the optimizer.
        process_set: Ranks that take part.

    Raises:
        ValueError: On every rank, if it is not. Gradients that some have submitted stay under way
            until `shutdown`.
    """
    which = "" if identity is None else identity.described(process_set)
    (same_operations, same), _ = _compared([argument, which], "optimizers", process_set)
    here = f"on rank {basics.rank()}"
    again = "after shutdown() and init() if the job goes on, since gradients are still under way"
    if not same_operations:
        raise ValueError(
            f"DistributedOptimizer: {argument} {here}, and another schedule or op on another rank "
            f"(expected the same on every rank); pass the same schedule and op everywhere, {again}"
        )
    if not same:
        raise ValueError(
            f"DistributedOptimizer: this step is of optimizer {which.split()[0]} of {process_set} "
            f"{here}, counted as they were made, and of another one on another rank (expected the "
            f"same); make optimizers, and take their first steps, in one order everywhere, {again}"
        )


def check_alike(asked: Asked, process_set: ProcessSet) -> bool:
    """Compare what the ranks were asked for.

    Collective: every rank of the process set; those that have joined agree with all.
    Blocks: until all have answered.

    Returns:
        Whether every rank knows that it is the same: none that has joined does, and asks later.

    Raises:
        ValueError: On every rank, if they were asked for different things.
    """
    equal, ranks = _compared(asked, "asked_of_optimizers", process_set)
    if all(equal):
        return ranks == process_set.size()
    named = [number for number, same in enumerate(equal) if not same]
    mine = " and ".join(asked[number] for number in named)
    root = first_rank(process_set)
    who = f"this one {mine}"
    if ranks == process_set.size():  # a broadcast is not for ranks that have joined
        first = broadcast_object(asked, root, "asked_of_first", process_set)
        theirs = " and ".join(first[number] for number in named)
        if theirs != mine:
            who = f"rank {root} {theirs}, {who}"
        else:
            both = "" if process_set.rank() == 0 else f"rank {root} and "
            who = f"{both}{who}, another rank something else, which its own error says"
    raise ValueError(
        f"the ranks were given different {' and '.join(_ARGUMENTS[number] for number in named)}: "
        f"{who} (expected the same on every rank); "
        + "; ".join(_REMEDIES[number] for number in named)
    )


class Forms(NamedTuple):
    """On how many ranks a gradient is sparse, dense and missing, and sparse dimensions of all."""

    sparse: int
    dims: int
    dense: int
    missing: int
    #: Of what stands in for it.
    missing_dims: int

    @property
    def common(self) -> int | None:
        """Sparse dimensions for all, or 0: dense; None: ranks that have the gradient differ."""
        if self.sparse == 0:
            return 0
        return None if self.dense or self.dims % self.sparse else self.dims // self.sparse

    @property
    def mendable(self) -> bool:
        """Whether they agree, and others have sent something else in the place of the gradient."""
        return self.common is not None and self.missing_dims != self.common * self.missing


def forms_of(forms: Sequence[Form], name: str, process_set: ProcessSet) -> list[Forms]:
    """What the forms of gradients on this rank are together with those of all ranks.

    Collective: every rank of the process set, with the same name and gradients; those that have
    joined count nowhere.
    Blocks: until all have answered.
    """
    mine: list[int] = []
    for dims, missing in forms:
        mine += [0, 0, 0, 1, dims] if missing else [dims > 0, dims, dims == 0, 0, 0]
    found = sums([*map(int, mine)], name, process_set)
    return [Forms(*found[begin : begin + 5]) for begin in range(0, len(found), 5)]


def alike(text: str, name: str, process_set: ProcessSet) -> bool:
    """Whether all ranks have the same text, as far as 20 bits of it tell.

    Collective: every rank of the process set, with the same name; those that have joined agree with
    all.
    Blocks: until all have answered.
    """
    return all(_compared([text], name, process_set)[0])


def least_waiting(
    costs: tuple[float, float] | None, busy_s: float, name: str, process_set: ProcessSet
) -> tuple[float, float] | None:
    """Costs a, b of the rank with the fewest seconds of operations, or None if a rank knows none.

    Who submits early waits for the others, which is no cost. Both numbers are of one rank: a of
    one and b of another, each the lowest, may be far below what any of them has measured. Of ranks
    with equally few seconds the larger numbers count.

    Collective: every rank of the process set, with the same name.
    Blocks: until all have answered.
    """
    # Nothing that is not finite may travel: AIACC_CHECK_FINITE would end the job.
    known = costs is not None and all(map(math.isfinite, (busy_s, *costs)))
    mine = [0.0, -busy_s] if known else [1.0, 0.0]
    unknown, least = maxima(mine, f"{name}.busy", process_set)
    if unknown:
        return None
    assert costs is not None
    a, b = maxima(costs if -busy_s == least else (-1.0, -1.0), name, process_set)
    return a, b


def _compared(texts: Sequence[str], name: str, process_set: ProcessSet) -> tuple[list[bool], int]:
    """`alike` of each text, and how many ranks have one. Collective, blocks."""
    numbers = [zlib.crc32(text.encode()) & 0xFFFFF for text in texts]
    squares = [number**2 for number in numbers]
    *found, ranks = sums([*numbers, *squares, 1], name, process_set)
    pairs = zip(numbers, squares, found, found[len(texts) :], strict=False)
    equal = [total == n * ranks and of_squares == n2 * ranks for n, n2, total, of_squares in pairs]
    return equal, int(ranks)


def agree(
    order: Sequence[int], gradients: Gradients, options: ReductionOptions
) -> tuple[list[int], Plan]:
    """The order in which the planner has to see these gradients, and the buckets that it makes.

    Collective: every rank of the process set, each with its ``order``; or none, if the planner
    goes by a rank's own.
    Blocks: until all have answered.

    Raises:
        ValueError: The ranks have different gradients; or the planner's plan is none.
    """
    planner = options.planner
    named = [(gradients.names[index], gradients.parameters[index]) for index in order]
    if planner.order != "own":
        number_of = {name: index for index, (name, _) in zip(order, named, strict=True)}
        in_buckets = options.storage is not own_memory
        names = _order_of_first(named, options.process_set, in_buckets)
        if names is None:
            raise ValueError(
                f"{planner.argument}: the ranks have parameters of different names, shapes, dtypes "
                "or memory formats, or have divided them among their GPUs in different ways "
                "(expected the same everywhere); pass the same named_parameters, of the same "
                f"model, on every rank, or leave out {planner.argument}"
            )
        order = [number_of[name] for name in names]
        named = [(gradients.names[index], gradients.parameters[index]) for index in order]
    plan = checked(planner.divide(describe(named)), len(order), planner.argument)
    return list(order), [[order[position] for position in bucket] for bucket in plan if bucket]


def any_failed(failure: Exception | None, process_set: ProcessSet) -> bool:
    """Whether a rank could not form its buckets; that one tells why.

    Collective: every rank of the process set.
    Blocks: until all have answered.
    """
    (failed,) = sums([failure is not None], "failures_of_buckets", process_set)
    if failure is not None:
        warnings.warn(
            f"gradient_as_bucket_view: no memory for the buckets on this rank ({failure}); all "
            "ranks leave gradients where autograd puts them, in the same buckets",
            stacklevel=2,
        )
    return bool(failed)


def agree_on_views(gradients: Gradients, process_set: ProcessSet) -> bool | None:
    """Whether this step of all ranks says that gradients are to stay in flat buckets.

    Collective: every rank of ``process_set``.
    Blocks: until all have answered.

    Returns:
        None if a rank has joined: it would not know the answer when it comes back.
    """
    elements = sum(view.numel() for view in gradients.views.values())
    counts = torch.tensor([gradients.copied, elements, 1], dtype=torch.int64, device="cpu")
    allreduce_(counts, None, "copied_gradients", Sum, process_set=process_set)
    copied, elements, ranks = counts.tolist()
    return views_pay(copied, elements) if ranks == process_set.size() else None


def _order_of_first(
    named: NamedParameters, process_set: ProcessSet, strides_count: bool
) -> list[str] | None:
    """The names in the order of the lowest rank of ``process_set``; None if the ranks differ."""
    described = {
        gradient.name: (*gradient, tuple(p.shape), strides_in(p) if strides_count else ())
        for gradient, (_, p) in zip(describe(named), named, strict=True)
    }
    root = first_rank(process_set)
    first = broadcast_object(list(described.items()), root, "order_of_gradients", process_set)
    equal = torch.tensor([int(dict(first) == described)], dtype=torch.uint8, device="cpu")
    allreduce_(equal, None, "descriptions_of_gradients", Min, process_set=process_set)
    return [name for name, _ in first] if equal.item() else None
