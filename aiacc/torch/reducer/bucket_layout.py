"""Where each gradient lies in the flat buckets: a pure decision."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

#: Gradients start at multiples of this, for vector instructions.
ALIGNMENT_BYTES = 64


class Entry(NamedTuple):
    """What matters of a gradient."""

    elements: int
    element_bytes: int
    kind: Hashable  #: what may share a bucket: dtype and device


class Bucket(NamedTuple):
    """One flat piece of memory of one kind; lengths and offsets in elements."""

    members: list[int]
    offsets: list[int]
    elements: int


def lay_out(entries: Sequence[Entry], bucket_bytes: int) -> list[Bucket]:
    """Pack ``entries``, in the order in which their gradients come, into buckets.

    A bucket holds consecutive entries of one kind and at most ``bucket_bytes``, or a single larger
    one. Buckets are in the order in which they get complete.
    """
    done: list[Bucket] = []
    open_buckets: dict[Hashable, Bucket] = {}
    for number, entry in enumerate(entries):
        bucket = open_buckets.get(entry.kind)
        if bucket is not None and (bucket.elements + entry.elements) * entry.element_bytes > (
            bucket_bytes
        ):
            done.append(bucket)
            bucket = None
        bucket = bucket or Bucket([], [], 0)
        padded = _rounded_up(entry.elements, ALIGNMENT_BYTES // entry.element_bytes)
        open_buckets[entry.kind] = Bucket(
            [*bucket.members, number],
            [*bucket.offsets, bucket.elements],
            bucket.elements + padded,
        )
    done += open_buckets.values()
    return sorted(done, key=lambda bucket: bucket.members[-1])


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of this shape and strides fill memory without gaps or overlap."""
    expected = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True
