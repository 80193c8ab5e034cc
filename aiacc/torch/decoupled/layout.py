"""Where parameters are in the flat memory of a bucket, and which part each rank updates. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiacc.torch.reducer.plan import ALIGNMENT_BYTES
from aiacc.torch.reducer.storage import lay_out


class Segment(NamedTuple):
    """The part of a parameter that lies in the shard of a rank; all in elements."""

    #: Position of the parameter in the bucket.
    member: int
    #: In the parameter, in the order of memory.
    begin: int
    end: int
    #: Where it begins in the shard.
    offset: int


class Layout(NamedTuple):
    """Of a bucket: parameters one after the other, then padding, in as many shards as ranks."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    shard: int
    ranks: int

    @property
    def elements(self) -> int:
        """Of the flat memory."""
        return self.shard * self.ranks

    def segments(self, rank: int) -> list[Segment]:
        """What the shard of ``rank`` has of the parameters; their order is that of the members."""
        first, last = rank * self.shard, (rank + 1) * self.shard
        found = []
        for member, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            begin, end = max(offset, first), min(offset + size, last)
            if begin < end:
                found.append(Segment(member, begin - offset, end - offset, begin - first))
        return found


def divide(sizes: Sequence[int], element_bytes: int, ranks: int) -> Layout:
    """Shards of equal size, which begin at multiples of `ALIGNMENT_BYTES`, as parameters do.

    A shard may begin within a parameter, and have parameters of several groups of the optimizer: it
    is updated segment by segment, so that each has the options and the number of steps of its own.
    """
    offsets, elements = lay_out(sizes, element_bytes)
    unit = ranks * (ALIGNMENT_BYTES // element_bytes)
    return Layout(tuple(sizes), tuple(offsets), -(-elements // unit) * unit // ranks, ranks)
