"""A trace, a cost model and constraints as the arrays that planners work on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from aiacc.planning.cost import ALL_REDUCE, CostModel
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.trace import Trace

Floats = npt.NDArray[np.float64]

_KEPT_BYTES = 32 << 20


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
    def first(self) -> npt.NDArray[np.int_]:
        """The first tensor that a bucket may begin with, by its end; any later one may, too."""
        count, run = len(self), self.runs
        first = np.concatenate([[0], np.searchsorted(run, run)])
        if self.constraints.max_bytes is not None:
            fits = np.searchsorted(self.prefix, self.prefix - self.constraints.max_bytes)
            first = np.maximum(first, np.minimum(fits, np.arange(-1, count)))
        return first

    def costs_to(self, end: int, operation: str = ALL_REDUCE, lanes: int = 1) -> Floats:
        """Seconds of the buckets (0, end), (1, end) ... (end - 1, end); infinite if not allowed.

        In O(end): a matrix of all buckets would be 0.3 GB for 6,000 tensors.
        """
        first = int(self.first[end])
        times = np.full(end, np.inf)
        times[first:] = self.cost.time(operation, self.prefix[end] - self.prefix[first:end], lanes)
        return times

    def costs_from(self, start: int, operation: str = ALL_REDUCE, lanes: int = 1) -> Floats:
        """The same of the buckets (start, start + 1), (start, start + 2) ... (start, count)."""
        end = int(np.searchsorted(self.first, start, "right"))
        times = np.full(len(self) - start, np.inf)
        sizes = self.prefix[start + 1 : end] - self.prefix[start]
        times[: end - start - 1] = self.cost.time(operation, sizes, lanes)
        return times

    def ends_of_limit(self, limit: float) -> list[int]:
        """Ends of buckets that are filled, one after the other, until they have ``limit`` bytes."""
        ends, start, first = [], 0, self.first
        for end in range(1, len(self)):
            full = self.prefix[end] - self.prefix[start] >= limit
            if full or start < first[end + 1]:
                ends.append(end)
                start = end
        return [*ends, len(self)]


def kept(rows: Callable[[int], Floats], numbers: int) -> Callable[[int], Floats]:
    """``rows``, which are kept and not computed again if all of their numbers fit into 32 MiB."""
    return cache(rows) if 8 * numbers <= _KEPT_BYTES else rows


def starts_of(ends: Sequence[int]) -> list[int]:
    """First tensor of each bucket."""
    return [0, *ends[:-1]]
