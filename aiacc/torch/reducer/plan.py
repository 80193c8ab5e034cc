"""Which gradients are reduced as one operation: a pure decision, which others may take instead.

A `Planner` is data. `DistributedOptimizer` makes one of those below; whoever knows more, such as
how long each gradient takes to compute, hands in another (`GradientReducer.follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from aiacc.planning.plan import Plan as NamedPlan


class Gradient(NamedTuple):
    """What a planner knows of a gradient; equal on all ranks."""

    name: str
    elements: int
    element_bytes: int
    dtype: str
    device_key: int  #: tells devices apart; no ordinal, for ranks may number theirs in another way


#: Buckets in the order in which they get complete: positions in the gradients that were given. A
#: gradient that is in none of them is reduced by itself.
Plan: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Planner:
    """How gradients are divided into buckets; equal on all ranks.

    Attributes:
        divide: The decision. Pure, since every rank takes it for itself, and picklable.
        order: In which order it gets the gradients. "own": in that of this rank's parameters; no
            other rank is asked, so buckets may not depend on it. "declared": in that of the first
            rank's parameters; the ranks agree on it at the end of their first step, and have no
            buckets until then. "arrival": in the order in which the first rank's backward pass gave
            them in that step; once more after each step in which gradients have come that were not
            reduced before.
        argument: Where the user asked for it, for errors.
    """

    divide: Callable[[Sequence[Gradient]], Plan]
    order: Literal["own", "declared", "arrival"] = "arrival"
    argument: str = "the planner"


def singly() -> Planner:
    """Every gradient by itself."""
    return Planner(_no_buckets, "own")


def chosen(groups: Sequence[Sequence[str]]) -> Planner:
    """The user's groups of gradients, by name; names that do not exist are left out."""
    return Planner(partial(_named, tuple(map(tuple, groups))), "own", "groups")


def planned(plan: NamedPlan) -> Planner:
    """The buckets of a plan from `aiacc.planning`, by name; one for each device and dtype in it."""
    return Planner(partial(_named_by_kind, plan.buckets), "declared", "plan")


def evenly(groups: int) -> Planner:
    """So many groups of consecutive gradients; one on several devices is a group for each."""
    return Planner(partial(_split, groups), "declared", f"groups={groups}")


def by_size(bucket_bytes: int, apart: Collection[str] = ()) -> Planner:
    """Buckets of at most ``bucket_bytes``, or of a single larger gradient, of one dtype each.

    Those whose names are in ``apart`` are in no bucket with others.
    """
    divide = partial(_packed, bucket_bytes, frozenset(apart))
    return Planner(divide, "arrival", "gradient_as_bucket_view")


#: For buckets of what travels coded, which waits for the network several times, whatever its size.
FUSED_BYTES = 32 << 20


def fused(bucket_bytes: int, names: Collection[str]) -> Planner:
    """The same for the gradients of these names; every other one by itself."""
    return Planner(partial(_fused, bucket_bytes, frozenset(names)), "arrival", "compression")


def fused_from_the_end(bucket_bytes: int, names: Collection[str]) -> Planner:
    """As `fused`, in the order in which a backward pass comes to parameters, most likely."""
    divide = partial(_fused_from_the_end, bucket_bytes, frozenset(names))
    return Planner(divide, "declared", "compression")


def together(buckets: Sequence[Sequence[str]]) -> Planner:
    """These buckets, by name, of what travels coded; every other gradient by itself."""
    divide = partial(_named_by_device, tuple(map(tuple, buckets)))
    return Planner(divide, "declared", "compression")


def checked(plan: Plan, count: int, argument: str) -> Plan:
    """``plan`` itself; ValueError unless it is one for ``count`` gradients."""
    members = [member for bucket in plan for member in bucket]
    known = range(count)
    if len(set(members)) != len(members) or any(member not in known for member in members):
        raise ValueError(
            f"{argument}: a plan of buckets {plan!r:.200} (expected each of the positions 0 to "
            f"{count - 1} at most once); mend the planner"
        )
    return plan


def _no_buckets(gradients: Sequence[Gradient]) -> Plan:
    del gradients
    return ()


def _named(groups: Sequence[Sequence[str]], gradients: Sequence[Gradient]) -> Plan:
    position_of = {gradient.name: position for position, gradient in enumerate(gradients)}
    return [[position_of[name] for name in group if name in position_of] for group in groups]


def _named_by_device(groups: Sequence[Sequence[str]], gradients: Sequence[Gradient]) -> Plan:
    return _by_device(_named(groups, gradients), gradients)


def _named_by_kind(groups: Sequence[Sequence[str]], gradients: Sequence[Gradient]) -> Plan:
    kinds = [(gradient.device_key, gradient.dtype) for gradient in gradients]
    return [part for group in _named(groups, gradients) for part in divided(group, kinds)]


def _split(groups: int, gradients: Sequence[Gradient]) -> Plan:
    return _by_device(split_evenly(range(len(gradients)), groups), gradients)


def _by_device(plan: Plan, gradients: Sequence[Gradient]) -> Plan:
    keys = [gradient.device_key for gradient in gradients]
    return [part for bucket in plan for part in divided(bucket, keys)]


def _fused(bucket_bytes: int, names: frozenset[str], gradients: Sequence[Gradient]) -> Plan:
    plan = _packed(bucket_bytes, names, gradients)
    return [bucket for bucket in plan if gradients[bucket[0]].name in names]


def _fused_from_the_end(
    bucket_bytes: int, names: frozenset[str], gradients: Sequence[Gradient]
) -> Plan:
    last = len(gradients) - 1
    plan = _fused(bucket_bytes, names, gradients[::-1])
    return [[last - position for position in bucket] for bucket in plan]


def _packed(bucket_bytes: int, apart: frozenset[str], gradients: Sequence[Gradient]) -> Plan:
    done: list[list[int]] = []
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for position, gradient in enumerate(gradients):
        kind = gradient.dtype, gradient.device_key, gradient.name in apart
        size = gradient.elements * gradient.element_bytes
        bucket, filled = filling.get(kind, ([], 0))
        if bucket and filled + size > bucket_bytes:
            done.append(bucket)
            bucket, filled = [], 0
        filling[kind] = [*bucket, position], filled + padded(size)
    done += [bucket for bucket, _ in filling.values()]
    return sorted(done, key=lambda bucket: bucket[-1])


#: Gradients in a flat bucket start at multiples of this, for vector instructions.
ALIGNMENT_BYTES = 64


def padded(size: int) -> int:
    """Bytes that a gradient of ``size`` bytes takes up in a flat bucket."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def numbered(keys: Mapping[str, Hashable]) -> dict[str, int]:
    """A number for the value of every name: equal on ranks that have divided the names alike."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(keys[name], len(numbers)) for name in sorted(keys)}


def divided(group: Sequence[int], keys: Sequence[Hashable]) -> list[list[int]]:
    """``group`` in parts whose members have equal ``keys``, in order of appearance."""
    parts: dict[Hashable, list[int]] = {}
    for index in group:
        parts.setdefault(keys[index], []).append(index)
    return list(parts.values())


def split_evenly(items: Sequence[int], parts: int) -> list[Sequence[int]]:
    """``items`` in at most ``parts`` runs whose lengths differ by at most one; none is empty."""
    length, longer = divmod(len(items), parts)
    starts = [number * length + min(number, longer) for number in range(parts + 1)]
    runs = [items[begin:end] for begin, end in pairwise(starts)]
    return [run for run in runs if run]
