"""What a call of `parallel_map` is, and whether all ranks have made the same one."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from aiacc import arguments
from aiacc.collectives.objects import gather_objects, maxima
from aiacc.exceptions import MismatchError
from aiacc.process_sets import ProcessSet, first_rank, rank_and_size, set_id

#: Seconds of a tensor, or anything in proportion to them: for each tensor, or by tensor.
Cost = Callable[[torch.Tensor], float] | Sequence[float]


class Kind(NamedTuple):
    """Calls that are alike on all ranks."""

    name: str
    process_set: int
    #: What is wrong with the arguments, if anything is.
    wrong: str
    function: str
    device: str
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    weights: tuple[float, ...]
    divide: bool | None


def kind_of(
    tensors: Sequence[Any],
    function: Callable[..., Any],
    cost: Cost | None,
    process_set: ProcessSet,
    name: str,
    divide: bool | None,
) -> Kind:
    """What the arguments of a call are.

    Raises:
        ValueError: See `parallel_map`.
        TypeError: See `parallel_map`.
    """
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"[{name}] tensor {index} is a {type(tensor).__name__} (expected torch.Tensor)"
            )
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"[{name}] tensor {index} is on {tensor.device}, tensor 0 on {tensors[0].device} "
                "(expected one device); call it for each device"
            )
    if cost is None:
        costs = weights = [float(max(tensor.numel(), 1)) for tensor in tensors]
    else:
        costs = list(map(cost, tensors) if callable(cost) else cost)
        weights = [float(c) if arguments.is_number(c) else math.nan for c in costs]
    fits = all(weight >= 0 for weight in weights) and sum(weights) < float("inf")
    if len(weights) != len(tensors) or not fits:
        raise ValueError(
            f"[{name}] costs {costs!r:.300} of {len(tensors)} tensors (expected one for each, "
            "finite, >= 0, and a finite sum)"
        )
    qualified = getattr(function, "__qualname__", type(function).__qualname__)
    return Kind(
        name,
        set_id(process_set),
        "",
        f"{getattr(function, '__module__', '')}.{qualified}",
        str(tensors[0].device) if tensors else "",
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
        tuple(weights),
        divide,
    )


def say_wrong(name: str, error: Exception, process_set: ProcessSet) -> None:
    """Tell the ranks, which are in `agree`, that this one's arguments are wrong. Collective."""
    wrong = f"{type(error).__name__}: {error}"
    with contextlib.suppress(MismatchError):
        agree(Kind(name, 0, wrong, "", "", (), (), None), process_set)


def agree(kind: Kind, process_set: ProcessSet) -> None:
    """Raise on all ranks unless all have called alike. Collective."""
    # GPUs may have other ordinals.
    said = kind._replace(device=kind.device.partition(":")[0], process_set=0)
    digest = _digest(said)
    most, least = maxima([digest, -digest], f"{kind.name}.agree", process_set)
    if most == -least:
        return
    # Of each field a number: what all ranks have said of thousands of tensors fits nowhere.
    everyones = gather_objects(list(map(_digest, said)), f"{kind.name}.disagree", process_set)
    for number, theirs in enumerate(everyones):
        for field, first, here in zip(Kind._fields, everyones[0], theirs, strict=True):
            if first != here:
                _raise_difference(said, field, number, process_set)
    raise AssertionError("digests differ, and what they are of does not")


def _raise_difference(said: Kind, field: str, number: int, process_set: ProcessSet) -> NoReturn:
    """Say what the first rank of a set and the ``number``-th gave. Collective."""
    tells = rank_and_size(process_set).rank in (0, number)
    told = getattr(said, field) if tells else None
    values = gather_objects(told, f"{said.name}.difference", process_set)
    at = process_set.ranks[number] if process_set.ranks else number
    if field == "wrong":
        at, wrong = (at, values[number]) if values[number] else (first_rank(process_set), values[0])
        raise MismatchError(f"[{said.name}] rank {at} gave wrong arguments: {wrong}")
    first, here = _first_difference(values[0], values[number])
    raise MismatchError(
        f"[{said.name}] {field} differ: {first} on rank {first_rank(process_set)}, {here} on rank "
        f"{at} (expected the same on all ranks); pass the same tensors in the same order"
    )


def _first_difference(first: object, here: object) -> tuple[str, str]:
    """What to show of two values that differ: of thousands of tensors, the first such one."""
    if isinstance(first, tuple) and isinstance(here, tuple):
        if len(first) != len(here):
            return f"{len(first)} of them", f"{len(here)}"
        at = [one == other for one, other in zip(first, here, strict=True)].index(False)
        return f"number {at} is {first[at]}", f"{here[at]}"
    return _shortened(first), _shortened(here)


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:7], "big")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
