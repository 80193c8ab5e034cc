"""Samples from the node that keeps them, over the core's lanes, instead of from the origin.

All ranks know the order of the epoch of all ranks, so all know who needs what from whom, and
nobody asks: in rounds, ahead of the samplers, every rank sends what others will read next, in one
all-to-all. What a round does not bring, its reader fetches.
"""

from __future__ import annotations

import queue
import struct
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aiacc.array import allgather, alltoall
from aiacc.data.orders import Epoch, Indices, Topology, owners
from aiacc.data.origin import Source
from aiacc.exceptions import ShutdownError

_HEAD = struct.Struct("<16sQ")
#: Rounds that are under way before their samples are given.
_ROUNDS = 2


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
        nodes = np.repeat(np.arange(len(self.local_sizes)), self.local_sizes)
        firsts = np.cumsum((0, *self.local_sizes))[:-1]
        found = []
        for reader, samples in enumerate(self.lists):
            part = samples[begin:end]
            keeper = self.owner[part]
            sender = firsts[keeper] + part % np.array(self.local_sizes)[keeper]
            found.append(part[(keeper != nodes[reader]) & (sender == rank)].tolist())
        return found

    def own(self, rank: int, begin: int, end: int) -> list[int]:
        """What a rank reads then, and its own node keeps."""
        node = np.repeat(np.arange(len(self.local_sizes)), self.local_sizes)[rank]
        part = self.lists[rank][begin:end]
        own: list[int] = part[self.owner[part] == node].tolist()
        return own


def pack(records: Sequence[tuple[bytes, bytes | bytearray]]) -> bytes:
    """Keys and records as one message. Pure."""
    parts = [_HEAD.pack(key, len(record)) + bytes(record) for key, record in records]
    return b"".join(parts)


def unpack(message: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Inverse of `pack`, of several messages one after another. Pure.

    Raises:
        ValueError: It is no such thing.
    """
    while message:
        if len(message) < _HEAD.size:
            raise ValueError("no message of records")
        key, size = _HEAD.unpack_from(message)
        message = message[_HEAD.size :]
        if size > len(message):
            raise ValueError("half a message of records")
        yield key, message[:size]
        message = message[size:]


@dataclass
class _Round:
    plan: Plan
    begin: int
    end: int
    done: threading.Event = field(default_factory=threading.Event)


class Exchange:
    """The rounds of one rank, in a thread of their own.

    Collective: all ranks iterate equally far. If one does not, the others find out after
    ``patience_s`` and go on without.
    """

    def __init__(
        self, source: Source, topology: Topology, requests: int, each: int, patience_s: float
    ) -> None:
        """Nothing is sent yet.

        Args:
            source: This node's samples.
            topology: Where this rank is.
            requests: Samples that are fetched at a time, where a round wants what nobody has.
            each: Samples of each rank in a round.
            patience_s: Seconds that a round may take.
        """
        self._source = source
        self._topology = topology
        self._requests = requests
        self._each = each
        self._patience_s = patience_s
        self._rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Number in the job of each rank of the topology.
        self._job_ranks: list[int] = []
        self._is_over = False
        weakref.finalize(self, self._rounds.put, None)

    def through(self, epoch: Epoch, lists: Sequence[Indices]) -> Iterator[int]:
        """This rank's indices; each is given when its round has brought it."""
        owner = owners(epoch, self._topology.local_sizes)
        plan = Plan(lists, owner, self._topology.local_sizes)
        mine = lists[self._topology.rank]
        begins = range(0, len(mine), self._each)
        rounds = [_Round(plan, begin, begin + self._each) for begin in begins]
        for one in rounds[:_ROUNDS]:
            self._submit(one)
        for number, one in enumerate(rounds):
            for later in rounds[number + _ROUNDS : number + _ROUNDS + 1]:
                self._submit(later)
            if not self._is_over and not one.done.wait(self._patience_s):
                self._end(f"a round has taken more than {self._patience_s} s")
            yield from mine[one.begin : one.end].tolist()

    def _submit(self, one: _Round) -> None:
        if self._thread is None:
            arguments = (weakref.ref(self), self._rounds)
            self._thread = threading.Thread(
                target=_work, args=arguments, name="aiacc data", daemon=True
            )
            self._thread.start()
        self._rounds.put(one)

    def _end(self, why: object) -> None:
        if not self._is_over:
            self._is_over = True
            warnings.warn(
                f"samples are not taken from other nodes any more, but fetched: {why}; let all "
                "ranks read equally many samples of each epoch, of datasets with the same "
                f"fingerprint (here {self._source.fingerprint})",
                stacklevel=3,
            )

    def run(self, one: _Round) -> None:
        """Do a round, if there are still any."""
        try:
            if not self._is_over:
                self._exchange(one)
        except ShutdownError:
            self._is_over = True
        except Exception as error:
            self._end(error)
        finally:
            one.done.set()

    def _exchange(self, one: _Round) -> None:
        rank, store = self._topology.rank, self._source.store
        if not self._job_ranks:
            self._job_ranks = self._find_ranks()
        sends = one.plan.sends(rank, one.begin, one.end)
        own = one.plan.own(rank, one.begin, one.end)
        with ThreadPoolExecutor(self._requests) as pool:
            for index in own:
                pool.submit(self._source.bring, index)
            found = [list(pool.map(self._lend, indices)) for indices in sends]
        messages: list[bytes] = [b""] * len(sends)
        for number, records in enumerate(found):
            messages[self._job_ranks[number]] = pack([one for one in records if one is not None])
        data = np.frombuffer(b"".join(messages), np.uint8)
        received, _ = alltoall(data, [len(one) for one in messages], self._name("records"))
        for key, record in unpack(memoryview(received)):
            store.receive(key, record)

    def _lend(self, index: int) -> tuple[bytes, bytearray] | None:
        key = self._source.key(index)
        store = self._source.store
        try:
            return key, store.obtain(key, lambda: self._source.fetch(index), lent=True)
        except Exception:  # the reader fetches it, and says what is wrong
            return None

    def _find_ranks(self) -> list[int]:
        """The number in the job of each rank of the topology."""
        mine: Any = np.array([self._topology.rank], np.int64)
        order: list[int] = np.argsort(allgather(mine, self._name("ranks"))).tolist()
        return order

    def _name(self, what: str) -> str:
        return f"aiacc.data.{self._source.fingerprint}.{what}"


def _work(exchange: weakref.ref[Exchange], rounds: queue.SimpleQueue[_Round | None]) -> None:
    """The thread: rounds in their order, until the exchange is gone."""
    while (one := rounds.get()) is not None and (owner := exchange()) is not None:
        owner.run(one)
        del owner
