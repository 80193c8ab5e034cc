"""Which gradients travel together: what planners decide and executors obey. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiacc import arguments
from aiacc.planning.trace import Tensor, Trace, parse_json

ALL_REDUCE = "all_reduce"
DECOUPLED = "decoupled"
SCHEDULES = (ALL_REDUCE, DECOUPLED)
_FIELDS = {
    "planner": arguments.TEXT,
    "buckets": arguments.several(
        arguments.several(lambda name: isinstance(name, str), "").is_kind,
        "lists of names of tensors",
    ),
    "schedule": arguments.TEXT,
    "lanes": arguments.Rule("a whole number", arguments.is_whole),
    "predicted_s": arguments.NUMBER,
    "bound_s": arguments.NUMBER,
}
_WRITTEN = "as `aiacc-plan plan` writes it"


@dataclass(frozen=True)
class Plan:
    """Buckets of gradients, in the order in which they leave; equal on all ranks.

    Schedule ``all_reduce`` sends each bucket as a whole when its last gradient is ready.
    ``decoupled`` (Zhang et al., "DeAR", ICDCS 2023) does so by a reduce-scatter, and gathers the
    updated parameters in the opposite order while the next forward pass needs them.
    """

    planner: str
    #: Names of the tensors of each bucket, each in the order in which they become ready.
    buckets: tuple[tuple[str, ...], ...]
    schedule: str = ALL_REDUCE
    #: Buckets under way at a time.
    lanes: int = 1
    #: Seconds of a step, as the planner expects it.
    predicted_s: float = float("nan")
    #: Seconds that no plan can beat by this model; that of an exact planner is `predicted_s`.
    bound_s: float = float("nan")

    def __post_init__(self) -> None:
        arguments.check(vars(self), **_FIELDS)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} (expected one of {', '.join(SCHEDULES)})")
        if not self.buckets or not all(self.buckets):
            raise ValueError("a plan has at least one bucket, and each at least one tensor")
        names = [name for bucket in self.buckets for name in bucket]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"tensor {twice!r} is in two places (expected one)")
        if self.lanes < 1:
            raise ValueError(f"lanes {self.lanes} (expected >= 1)")

    @property
    def ends(self) -> list[int]:
        """How many tensors there are up to the end of each bucket."""
        return list(itertools.accumulate(map(len, self.buckets)))

    @property
    def digest(self) -> str:
        """Equal for plans that do the same, whoever made them."""
        decided = [self.buckets, self.schedule, self.lanes]
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()

    def encode(self) -> str:
        """As JSON; `decode` reads it."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def decode(text: str) -> Plan:
        """Inverse of `encode`. Raises ValueError, with line or field, for anything else."""
        try:
            fields = parse_json(text)
        except ValueError as error:
            raise ValueError(f"{error}; expected the text of a file {_WRITTEN}") from error
        kinds: dict[str, Any] = {"planner": str, "buckets": list, "schedule": str, "lanes": int}
        kinds |= {"predicted_s": (int, float), "bound_s": (int, float)}
        needed = {"planner", "buckets"}
        if not isinstance(fields, dict) or not needed <= fields.keys() <= kinds.keys():
            raise ValueError(f"the file holds no plan (expected one {_WRITTEN})")
        for name, value in fields.items():
            if not isinstance(value, kinds[name]) or isinstance(value, bool):
                expected = "a number" if name.endswith("_s") else kinds[name].__name__
                raise ValueError(f"{name}: {value!r:.100} (expected {expected})")
        buckets = fields["buckets"]
        if not all(
            isinstance(bucket, list) and all(isinstance(name, str) for name in bucket)
            for bucket in buckets
        ):
            raise ValueError("buckets: expected a list of lists of names")
        fields["buckets"] = tuple(tuple(bucket) for bucket in buckets)
        return Plan(**fields)


def check_kind(plan: object) -> Plan:
    """``plan`` itself; ValueError if it is anything but a `Plan`, such as a path."""
    if not isinstance(plan, Plan):
        raise ValueError(
            f"plan={plan!r:.50} (expected a Plan of aiacc.planning.plan); "
            "Plan.decode(Path(FILE).read_text()) reads the file of aiacc-plan"
        )
    return plan


@dataclass(frozen=True)
class Constraints:
    """Which plans are allowed."""

    #: Of a bucket with more than one tensor; None: no limit.
    max_bytes: int | None = None
    #: For each tensor of the trace, in its order: those with different keys never share a bucket
    #: (device, process set). The dtype is one by itself. None: all are alike.
    keys: Sequence[str] | None = None


UNCONSTRAINED = Constraints()


def cut(tensors: Iterable[Tensor], ends: Iterable[int]) -> tuple[tuple[str, ...], ...]:
    """Buckets that end behind so many of ``tensors``: ascending, the last one all of them."""
    names = [tensor.name for tensor in tensors]
    buckets, start = [], 0
    for end in ends:
        buckets.append(tuple(names[start:end]))
        start = end
    return tuple(buckets)


def bucket_cap_mb_list(trace: Trace, plan: Plan) -> list[float]:
    """Limits in MiB with which DDP makes the plan's buckets.

    DDP fills a bucket in the order of the gradients and closes it when it has reached its limit, so
    any limit that only the bucket's last tensor reaches will do: here the middle of that range.

    Raises ValueError for a plan that DDP cannot follow.
    """
    if plan.schedule == DECOUPLED:
        raise ValueError("DDP has no decoupled schedule (expected a plan for all-reduces)")
    dtypes = sorted({tensor.dtype for tensor in trace.tensors})
    if len(dtypes) > 1:
        raise ValueError(
            f"gradients are of {' and '.join(dtypes)}, for each of which DDP goes through its "
            "limits anew (expected one dtype); use aiacc's DistributedOptimizer(plan=...)"
        )
    sizes = {tensor.name: tensor.bytes for tensor in trace.tensors}
    limits = []
    for bucket in plan.buckets:
        nbytes = [sizes[name] for name in bucket]
        limits.append((sum(nbytes) - nbytes[-1] / 2) / (1 << 20))
    return limits
