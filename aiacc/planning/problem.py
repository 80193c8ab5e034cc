"""A trace, a cost model and constraints as the arrays that planners work on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from aiacc.planning.cost import ALL_REDUCE, CostModel
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.trace import Trace

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Tensors are numbered as in the trace; bucket (i, j) has those from i to before j."""

    trace: Trace
    cost: CostModel
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        keys = self.constraints.keys
        if keys is not None and len(keys) != len(self.trace.tensors):
            raise ValueError(
                f"{len(keys)} keys for {len(self.trace.tensors)} tensors (expected one for each)"
            )

    def __len__(self) -> int:
        return len(self.trace.tensors)

    @cached_property
    def ready(self) -> Floats:
        """Seconds from the start of the step."""
        return np.array([tensor.ready_s for tensor in self.trace.tensors])

    @cached_property
    def late(self) -> Floats:
        """When a bucket may begin, by its end: its last gradient is ready then."""
        return np.concatenate([[0.0], self.ready])

    @cached_property
    def need(self) -> Floats:
        """Seconds from the start of a forward pass."""
        return np.array([tensor.need_s for tensor in self.trace.tensors])

    @cached_property
    def prefix(self) -> Floats:
        """Bytes of the tensors before each one, and of all."""
        sizes = [tensor.bytes for tensor in self.trace.tensors]
        return np.concatenate([[0.0], np.cumsum(np.array(sizes, float))])

    @cached_property
    def runs(self) -> npt.NDArray[np.int_]:
        """Number of the run of mergeable neighbours that each tensor is in."""
        count = len(self)
        tensors = self.trace.tensors
        keys = self.constraints.keys or [""] * count
        runs = [0] * count
        for i in range(1, count):
            alike = (keys[i], tensors[i].dtype) == (keys[i - 1], tensors[i - 1].dtype)
            runs[i] = runs[i - 1] + (0 if alike else 1)
        return np.array(runs)

    @cached_property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether (i, j) may be a bucket."""
        count, run = len(self), self.runs
        first, end = np.arange(count + 1)[:, None], np.arange(count + 1)[None, :]
        same = run[np.minimum(first, count - 1)] == run[np.maximum(end, 1) - 1]
        allowed: npt.NDArray[np.bool_] = (first < end) & same
        if self.constraints.max_bytes is not None:
            sizes = self.prefix[None, :] - self.prefix[:, None]
            allowed &= (sizes <= self.constraints.max_bytes) | (end == first + 1)
        return allowed

    def costs(self, operation: str = ALL_REDUCE, lanes: int = 1) -> Floats:
        """Seconds of every bucket (i, j); infinite where it is not allowed."""
        sizes = np.maximum(self.prefix[None, :] - self.prefix[:, None], 0.0)
        times = np.asarray(self.cost.time(operation, sizes, lanes), float)
        return np.where(self.allowed, times, np.inf)

    def costs_to(self, end: int, operation: str = ALL_REDUCE, lanes: int = 1) -> Floats:
        """The same of the buckets (0, end), (1, end) ... (end - 1, end), in O(end)."""
        sizes = self.prefix[end] - self.prefix[:end]
        times = np.asarray(self.cost.time(operation, sizes, lanes), float)
        allowed = self.runs[:end] == self.runs[end - 1]
        if self.constraints.max_bytes is not None:
            allowed[: end - 1] &= sizes[: end - 1] <= self.constraints.max_bytes
        return np.where(allowed, times, np.inf)

    def ends_of_limit(self, limit: float) -> list[int]:
        """Ends of buckets that are filled, one after the other, until they have ``limit`` bytes."""
        ends, start = [], 0
        for end in range(1, len(self)):
            full = self.prefix[end] - self.prefix[start] >= limit
            if full or not self.allowed[start, end + 1]:
                ends.append(end)
                start = end
        return [*ends, len(self)]


def starts_of(ends: Sequence[int]) -> list[int]:
    """First tensor of each bucket."""
    return [0, *ends[:-1]]
