"""What a call of `parallel_map` is, and whether all ranks have made the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from aiacc.collectives.objects import gather_objects, maxima
from aiacc.exceptions import MismatchError
from aiacc.process_sets import ProcessSet, first_rank, set_id

#: Seconds of a tensor, or anything in proportion to them: for each tensor, or by tensor.
Cost = Callable[[torch.Tensor], float] | Sequence[float]


class Kind(NamedTuple):
    """Calls that are alike on all ranks."""

    name: str
    process_set: int
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
    name: str | None,
    divide: bool | None,
) -> Kind:
    """What the arguments of a call are.

    Raises:
        ValueError: See `parallel_map`.
        TypeError: See `parallel_map`.
    """
    name = name or "parallel_map"
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
        weights = [float(max(tensor.numel(), 1)) for tensor in tensors]
    else:
        weights = [float(c) for c in (map(cost, tensors) if callable(cost) else cost)]
    if len(weights) != len(tensors) or not all(0 <= w < float("inf") for w in weights):
        raise ValueError(
            f"[{name}] costs {weights} of {len(tensors)} tensors (expected one for each, finite, "
            ">= 0)"
        )
    qualified = getattr(function, "__qualname__", type(function).__qualname__)
    return Kind(
        name,
        set_id(process_set),
        f"{getattr(function, '__module__', '')}.{qualified}",
        str(tensors[0].device) if tensors else "",
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
        tuple(weights),
        divide,
    )


def agree(kind: Kind, process_set: ProcessSet) -> None:
    """Raise on all ranks unless all have called alike. Collective."""
    # GPUs may have other ordinals.
    said = kind._replace(device=kind.device.partition(":")[0], process_set=0)
    digest = int.from_bytes(hashlib.sha256(repr(said).encode()).digest()[:7], "big")
    most, least = maxima([digest, -digest], f"{kind.name}.agree", process_set)
    if most == -least:
        return
    everyones = gather_objects(said, f"{kind.name}.disagree", process_set)
    for number, other in enumerate(everyones):
        for field in Kind._fields:
            first, here = getattr(everyones[0], field), getattr(other, field)
            if first != here:
                at = process_set.ranks[number] if process_set.ranks else number
                raise MismatchError(
                    f"[{kind.name}] {field} differ: {_shortened(first)} on rank "
                    f"{first_rank(process_set)}, {_shortened(here)} on rank {at} (expected the "
                    "same on all ranks); pass the same tensors in the same order"
                )
    raise AssertionError("digests differ, and what they are of does not")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
