"""Samples from the node that keeps them, over the core's lanes, instead of from the origin.

All ranks know the order of the epoch of all ranks, so all know who needs what from whom, and
nobody asks: in rounds, ahead of the samplers, every rank sends in one all-to-all what it has of
what others will read next. What a round does not bring its reader fetches, and sends it to the node
that keeps it in a later round. So nobody waits for what another one fetches.
"""

from __future__ import annotations

import itertools
import queue
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aiacc.array import allgather, alltoall
from aiacc.data.ahead import Fetcher, how_far_together
from aiacc.data.neighbours.rounds import Message, Plan, odd_ones
from aiacc.data.orders import Epoch, Indices, Topology
from aiacc.data.origin import Source
from aiacc.exceptions import ShutdownError

#: Rounds for as many samples as are wanted ahead.
_ROUNDS_AHEAD = 6
#: Samples of other nodes that are looked for in memory in each round. Older ones are given up: they
#: were read, and have left it.
_MOST_HOMELESS = 1024


@dataclass
class _Round:
    """One all-to-all, for some samples of each rank; for none where fetched ones only go home."""

    plan: Plan
    #: Pass over the dataset, and whether this is its first round.
    number: int
    is_first: bool
    begin: int
    end: int
    #: Of this rank's samples: what must be fetched. All of them if nobody sends anything.
    absent: set[int]
    done: threading.Event = field(default_factory=threading.Event)


class Exchange:
    """The rounds of one rank, in a thread of their own.

    Collective: all ranks iterate equally far. If one does not, the others find out after
    ``patience_s`` and go on without.
    """

    def __init__(
        self,
        source: Source,
        topology: Topology,
        owner: Indices,
        fetcher: Fetcher,
        ahead: int,
        patience_s: float,
        digest: int = 0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            source: This node's samples.
            topology: Where this rank is.
            owner: The node that keeps each sample.
            fetcher: Gets what no round has brought.
            ahead: Samples of this rank that are brought or fetched before their turn, at most.
            patience_s: Seconds that a round may take.
            digest: Of a sample that all ranks know, 64 bits.
        """
        self._source = source
        self._topology = topology
        self._owner = owner
        self._fetcher = fetcher
        self._ahead = ahead
        self._each = -(-ahead // _ROUNDS_AHEAD)
        self._patience_s = patience_s
        self._digest = digest
        self._queue: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Number in the job of each rank of the topology.
        self._job_ranks: list[int] = []
        #: Passes that have begun.
        self._number = 0
        #: Samples that this rank has fetched, or will, and who is to get them.
        self._homeless: dict[int, int] = {}
        #: Ranks whose nodes have no room for more of them; this one may be among them.
        self._full: set[int] = set()
        self._is_over = False
        weakref.finalize(self, self._queue.put, None)
        weakref.finalize(self, fetcher.close)

    def through(self, epoch: Epoch, lists: Sequence[Indices]) -> Iterator[int]:
        """This rank's indices; each is given when its round has brought it, or has not."""
        del epoch
        self._number += 1
        plan = Plan(lists, self._owner, self._topology.local_sizes)
        mine = lists[self._topology.rank]
        each = self._each
        # The last ones are for what has been fetched since its own.
        coming = self._rounds(plan, range(-each, len(mine) + self._ahead, each))
        rounds: dict[int, _Round] = {}
        before = self._source.store.statistics().samples
        submitted = announced = reach = 0
        try:
            for position in range(len(mine)):
                number = 1 + position // each
                if position % each == 0:
                    reach = self._reach(position, before)
                    rounds.pop(number - 1, None)
                due = 1 + max(number, (position + reach) // each)
                for one in itertools.islice(coming, max(0, due - submitted)):
                    self._submit(one)
                    rounds[submitted] = one
                    submitted += 1
                end = min(position + reach, len(mine))
                announced = self._announce(mine, rounds, position, max(position, announced), end)
                if announced == position:
                    self._wait(rounds[number])
                    announced = self._announce(mine, rounds, position, position, end)
                self._fetcher.skip(1)
                yield int(mine[position])
            for one in coming:
                self._submit(one)
        finally:  # what was announced in vain is past
            self._fetcher.skip(self._ahead)

    def _rounds(self, plan: Plan, begins: range) -> Iterator[_Round]:
        mine = plan.lists[self._topology.rank]
        for begin in begins:
            first, end = max(0, begin), max(0, begin + self._each)
            yield _Round(plan, self._number, begin < 0, first, end, set(mine[first:end].tolist()))

    def _reach(self, position: int, before: int) -> int:
        """How many samples from there on are brought or fetched now."""
        found = self._source.store.statistics()
        count = found.fetched + found.received
        mean = (found.fetched_bytes + found.received_bytes) / count if count else 0.0
        size = self._topology.size
        ranks = self._topology.local_sizes[self._topology.node]
        unread = max(0, ranks * position - (found.samples - before))
        window = self._source.store.window
        share = (size - ranks) / size
        return how_far_together(self._ahead, window, mean, ranks, share, unread)

    def _announce(
        self, mine: Indices, rounds: Mapping[int, _Round], position: int, begin: int, end: int
    ) -> int:
        """Let be fetched what was not brought, as far as that is known; returns how far."""
        for place in range(begin, end):
            one = rounds.get(1 + place // self._each)
            if one is None or not (self._is_over or one.done.is_set()):
                return place
            if (index := int(mine[place])) in one.absent:
                self._fetcher.start()
                self._fetcher.announce(index, place - position)
        return max(begin, end)

    def _submit(self, one: _Round) -> None:
        if self._thread is None:
            arguments = (weakref.ref(self), self._queue)
            self._thread = threading.Thread(
                target=_work, args=arguments, name="aiacc data", daemon=True
            )
            self._thread.start()
        self._queue.put(one)

    def _wait(self, one: _Round) -> None:
        if not self._is_over and not one.done.wait(self._patience_s):
            self._end(f"a round has taken more than {self._patience_s} s")

    def _end(self, why: object) -> None:
        if not self._is_over:
            self._is_over = True
            warnings.warn(
                f"samples are not taken from other nodes any more, but fetched: {why}; let all "
                "ranks read equally many samples of each epoch, of equal datasets with the same "
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
            if self._source.store.is_open:
                self._end(error)
            self._is_over = True
        finally:
            one.done.set()

    def _exchange(self, one: _Round) -> None:
        rank, store, key = self._topology.rank, self._source.store, self._source.key
        if not self._job_ranks:
            self._job_ranks = self._find_ranks()
        if one.is_first:
            self._full.clear()
        # After a pass that was broken off, others may have more rounds of it left.
        while self._all_to_all(one) < one.number and one.is_first:
            pass
        absent = {index for index in one.absent if not store.in_memory(key(index))}
        lenders = one.plan.lenders(rank, one.begin, one.end)
        foreign = absent & set(lenders)
        if not store.window:  # fetched ahead, they would have no place until they are read
            absent -= foreign
        self._homeless.update({index: lenders[index] for index in foreign})
        for index in list(self._homeless)[:-_MOST_HOMELESS]:
            del self._homeless[index]
        one.absent = absent

    def _all_to_all(self, one: _Round) -> int:
        """Send and take records; returns the first of the passes that ranks are in."""
        rank, store = self._topology.rank, self._source.store
        records: list[list[Any]] = [
            [(key, False, record) for key, record in map(self._lend, indices) if record is not None]
            for indices in one.plan.sends(rank, one.begin, one.end)
        ]
        for index, reader, key, record in self._sent_home(one.is_first):
            del self._homeless[index]
            records[reader].append((key, True, record))
        messages: list[bytes] = [b""] * len(records)
        for number, sent in enumerate(records):
            if number != rank:
                message = Message(one.number, rank in self._full, sent)
                messages[self._job_ranks[number]] = message.pack()
        data = np.frombuffer(b"".join(messages), np.uint8)
        received, sizes = alltoall(data, [len(one) for one in messages], self._name("records"))
        ends = np.cumsum(sizes).tolist()
        first = one.number
        for number, job_rank in enumerate(self._job_ranks):
            if number == rank:
                continue
            end = ends[job_rank]
            message = Message.unpack(memoryview(received)[end - int(sizes[job_rank]) : end])
            first = min(first, message.number)
            if message.is_full:
                self._full.add(number)
            for key, stays, content in message.records:
                if not store.receive(key, content, stays) and stays:
                    self._full.add(rank)
        return first

    def _lend(self, index: int) -> tuple[bytes, bytearray | None]:
        key = self._source.key(index)
        return key, self._source.store.find(key, lent=True)

    def _sent_home(self, is_last: bool) -> Iterator[tuple[int, int, bytes, bytearray]]:
        """What has been fetched for other nodes, and whom it goes to.

        Args:
            is_last: Whether what has not been fetched yet is given up.
        """
        for index, reader in list(self._homeless.items()):
            key = self._source.key(index)
            is_there = self._source.store.in_memory(key)
            if is_there and reader in self._full:
                self._source.store.count("refused")
                del self._homeless[index]
            elif is_there and (record := self._source.store.find(key, lent=True)) is not None:
                yield index, reader, key, record
            elif is_last:
                del self._homeless[index]

    def _find_ranks(self) -> list[int]:
        """The number in the job of each rank of the topology.

        Raises:
            ValueError: The ranks' samples differ.
        """
        mine: Any = np.array([[self._topology.rank, self._digest]], np.int64)
        places, digests = np.transpose(allgather(mine, self._name("ranks")))
        if odd := odd_ones(digests.tolist()):
            raise ValueError(
                f"sample 0 of rank {', '.join(map(str, odd))} is another one than that of rank "
                f"{next(rank for rank in range(len(digests)) if rank not in odd)} (expected equal "
                "samples of equal fingerprints)"
            )
        order: list[int] = np.argsort(places).tolist()
        return order

    def _name(self, what: str) -> str:
        return f"aiacc.data.{self._source.fingerprint}.{what}"


def _work(exchange: weakref.ref[Exchange], rounds: queue.SimpleQueue[_Round | None]) -> None:
    """The thread: rounds in their order, until the exchange is gone."""
    while (one := rounds.get()) is not None and (owner := exchange()) is not None:
        owner.run(one)
        del owner
