"""Where parameters are in the flat memory of a bucket, and which part each rank updates. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from aiacc.torch.reducer.plan import ALIGNMENT_BYTES
from aiacc.torch.reducer.storage import lay_out


class Segment(NamedTuple):
    """A part of a parameter that lies in a shard of a rank; all in elements."""

    #: Position of the parameter in the bucket.
    member: int
    #: In the parameter, in the order of memory.
    begin: int
    end: int
    #: Where it begins in the shards of the rank, which are one after the other.
    offset: int


class Layout(NamedTuple):
    """Of a bucket: parameters one after the other, then padding, in parts of a shard for each rank.

    Each part is reduced and gathered by an operation of its own.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    shard: int
    ranks: int
    parts: int

    @property
    def part(self) -> int:
        """Elements of a part."""
        return self.shard * self.ranks

    @property
    def elements(self) -> int:
        """Of the flat memory."""
        return self.part * self.parts

    def segments(self, rank: int) -> list[Segment]:
        """What the shards of ``rank`` have of the parameters, in the order of memory."""
        ends = [offset + size for offset, size in zip(self.offsets, self.sizes, strict=True)]
        found = []
        for number in range(self.parts):
            first = number * self.part + rank * self.shard
            for member in range(bisect.bisect_right(ends, first), len(ends)):
                offset = self.offsets[member]
                begin, end = max(offset, first), min(ends[member], first + self.shard)
                if offset >= first + self.shard:
                    break
                if begin < end:
                    place = number * self.shard + begin - first
                    found.append(Segment(member, begin - offset, end - offset, place))
        return found


def divide(sizes: Sequence[int], element_bytes: int, ranks: int, parts: int = 1) -> Layout:
    """Shards of equal size, which begin at multiples of `ALIGNMENT_BYTES`, as parameters do.

    A shard may begin within a parameter, and have parameters of several groups of the optimizer: it
    is updated segment by segment, so that each has the options and the number of steps of its own.
    """
    offsets, elements = lay_out(sizes, element_bytes)
    unit = parts * ranks * (ALIGNMENT_BYTES // element_bytes)
    shard = -(-elements // unit) * (ALIGNMENT_BYTES // element_bytes)
    return Layout(tuple(sizes), tuple(offsets), shard, ranks, parts)
