"""A trace, a cost model and constraints as the arrays that planners work on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aiacc.planning.cost import ALL_REDUCE, CostModel
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.trace import Tensor, Trace

Floats = npt.NDArray[np.float64]

_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class Problem:
    """Bucket (i, j) has the `tensors` from i to before j."""

    trace: Trace
    cost: CostModel
    constraints: Constraints = UNCONSTRAINED
    #: Of `tensors`, as numbers in the trace; None: that of the trace.
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        keys = self.constraints.keys
        if keys is not None and len(keys) != len(self.trace.tensors):
            raise ValueError(
                f"{len(keys)} keys for {len(self.trace.tensors)} tensors (expected one for each)"
            )

    def __len__(self) -> int:
        return len(self.trace.tensors)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """In the order that buckets are cut from; those of a bucket become ready in it."""
        return [self.trace.tensors[number] for number in self._order]

    @cached_property
    def kinds(self) -> list[tuple[str, str]]:
        """Dtype and key of each of `tensors`: a bucket has one kind."""
        keys = self.constraints.keys or [""] * len(self)
        return [(self.trace.tensors[number].dtype, keys[number]) for number in self._order]

    @property
    def _order(self) -> Sequence[int]:
        return range(len(self)) if self.order is None else self.order

    @property
    def takes_turns(self) -> bool:
        """Whether there are kinds whose tensors are not all neighbours."""
        return int(self.runs[-1]) + 1 > len(set(self.kinds))

    def by_kind(self, ends: Sequence[int] = ()) -> Problem:
        """The same with the tensors of a kind together, in each of the parts that end at ``ends``.

        Kinds are in the order of their bytes, and in every other part in the opposite one, so that
        a kind may go on in the next part. The problem itself if no kinds take turns.
        """
        if not self.takes_turns:
            return self
        bytes_of: Counter[tuple[str, str]] = Counter()
        for kind, tensor in zip(self.kinds, self.tensors, strict=True):
            bytes_of[kind] += tensor.bytes
        rank = {kind: number for number, (kind, _) in enumerate(bytes_of.most_common())}
        parts = np.searchsorted(ends, np.arange(len(self)), "right")
        ranks = np.array([rank[kind] for kind in self.kinds]) * np.where(parts % 2, -1, 1)
        order = np.array(self._order)[np.lexsort((ranks, parts))]
        return replace(self, order=tuple(order.tolist()))

    def of_one_kind(self) -> Problem:
        """The same if all tensors might share a bucket."""
        tensors = tuple(replace(tensor, dtype="") for tensor in self.trace.tensors)
        trace = replace(self.trace, tensors=tensors)
        return replace(self, trace=trace, constraints=replace(self.constraints, keys=None))

    @cached_property
    def ready(self) -> Floats:
        """Seconds from the start of the step."""
        return np.array([tensor.ready_s for tensor in self.tensors])

    @cached_property
    def late(self) -> Floats:
        """When a bucket may begin, by its end: its last gradient is ready then."""
        return np.concatenate([[0.0], self.ready])

    @cached_property
    def need(self) -> Floats:
        """Seconds from the start of a forward pass."""
        return np.array([tensor.need_s for tensor in self.tensors])

    @cached_property
    def prefix(self) -> Floats:
        """Bytes of the tensors before each one, and of all."""
        sizes = [tensor.bytes for tensor in self.tensors]
        return np.concatenate([[0.0], np.cumsum(np.array(sizes, float))])

    @cached_property
    def runs(self) -> npt.NDArray[np.int_]:
        """Number of the run of mergeable neighbours that each tensor is in."""
        changes = [one != other for one, other in pairwise(self.kinds)]
        return np.cumsum([0, *changes])

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

    def ends_of_limit(self, limit: float, limit_of_first: float | None = None) -> list[int]:
        """Ends of buckets that are filled, one after the other, until they have ``limit`` bytes.

        The first one of each run of a kind, which is the first to be sent, has a limit of its own.
        """
        ends, start, first, runs = [], 0, self.first, self.runs
        if limit_of_first is None:
            limit_of_first = limit
        for end in range(1, len(self)):
            begins = start == 0 or runs[start - 1] < runs[start]
            full = self.prefix[end] - self.prefix[start] >= (limit_of_first if begins else limit)
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
