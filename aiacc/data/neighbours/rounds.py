"""Who sends what to whom in the rounds of an epoch, and how it travels. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiacc.data.orders import Indices

_HEAD = struct.Struct("<Q?")
_RECORD = struct.Struct("<16s?Q")


@dataclass(frozen=True)
class Plan:
    """Who sends what in an epoch. Pure; equal on all ranks. Ranks are numbered node by node."""

    #: What each rank reads.
    lists: Sequence[Indices]
    #: The node that keeps each sample.
    owner: Indices
    local_sizes: tuple[int, ...]

    def sends(self, rank: int, begin: int, end: int) -> list[list[int]]:
        """What a rank sends to each for their samples ``begin`` to ``end`` - 1.

        A node's samples are sent by its ranks in turns, by their index.
        """
        nodes = self._nodes
        found = []
        for reader, samples in enumerate(self.lists):
            part = samples[begin:end]
            is_sent = (self.owner[part] != nodes[reader]) & (self._senders(part) == rank)
            found.append(part[is_sent].tolist())
        return found

    def lenders(self, rank: int, begin: int, end: int) -> dict[int, int]:
        """What a rank reads then and another node keeps, and which rank sends it."""
        node = self._nodes[rank]
        part = self.lists[rank][begin:end]
        foreign = part[self.owner[part] != node]
        return dict(zip(foreign.tolist(), self._senders(foreign).tolist(), strict=True))

    @property
    def _nodes(self) -> Indices:
        return np.repeat(np.arange(len(self.local_sizes)), self.local_sizes)

    def _senders(self, samples: Indices) -> Indices:
        firsts = np.cumsum((0, *self.local_sizes))[:-1]
        keeper = self.owner[samples]
        sender: Indices = firsts[keeper] + samples % np.array(self.local_sizes)[keeper]
        return sender


@dataclass(frozen=True)
class Message:
    """What one rank sends to another in a round."""

    #: Pass over the dataset, counted by the sender.
    number: int = 0
    #: Whether the sender has no room for more that it would keep.
    is_full: bool = False
    #: Key, whether it is for the receiver to keep, record.
    records: Sequence[tuple[bytes, bool, bytes | bytearray | memoryview]] = ()

    def pack(self) -> bytes:
        """Its bytes; `unpack` reads them."""
        parts: list[bytes | bytearray | memoryview] = [_HEAD.pack(self.number, self.is_full)]
        for key, stays, record in self.records:
            parts += [_RECORD.pack(key, stays, len(record)), record]
        return b"".join(parts)

    @staticmethod
    def unpack(data: memoryview) -> Message:
        """Inverse of `pack`; the records are views of ``data``.

        Raises:
            ValueError: It is no such thing.
        """
        if len(data) < _HEAD.size:
            raise ValueError("no message of records")
        number, is_full = _HEAD.unpack_from(data)
        records = []
        at = _HEAD.size
        while at < len(data):
            if len(data) - at < _RECORD.size:
                raise ValueError("half a message of records")
            key, stays, size = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            if size > len(data) - at:
                raise ValueError("half a message of records")
            records.append((key, stays, data[at : at + size]))
            at += size
        return Message(number, is_full, records)


def odd_ones(digests: Sequence[int]) -> list[int]:
    """Ranks whose digest is not that of most, or of the first of as many. Pure."""
    usual = max(digests, key=digests.count)
    return [rank for rank, digest in enumerate(digests) if digest != usual]
