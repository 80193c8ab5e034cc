"""A dataset whose samples are fetched once, and come from near by afterwards."""

from __future__ import annotations

import dataclasses
import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiacc import arguments, log
from aiacc.data import orders, origin
from aiacc.data.ahead import AheadOf, Fetcher, how_far
from aiacc.data.fingerprint import fingerprint_of, named
from aiacc.data.layout import Eviction
from aiacc.data.neighbours.exchange import Exchange
from aiacc.data.orders import SHARDS, Epoch, Indices, Shard, Topology
from aiacc.data.record import decode
from aiacc.data.sampler import ShardSampler, check_job, first_epoch, place_of
from aiacc.data.sizes import SHARED_MEMORY, folder_and_bytes
from aiacc.data.statistics import Statistics
from aiacc.data.store import Store, Tiers
from aiacc.data.warmup import Bar, Progress, quiet, warm

#: Samples of each rank that are exchanged between nodes before their turn.
_AHEAD = 64
#: Indices that become Python's integers at a time.
_AT_A_TIME = 1 << 14
_logger = logging.getLogger("aiacc.data")


class CachedDataset:
    """Wraps a map-style dataset; what it has returned once is not asked of it again.

    The samples that are kept must not be augmented at random: give random augmentation as
    ``transform``. Where the dataset itself augments there is a warning: a few samples are fetched
    twice, and compared.

    Records are found by the dataset's fingerprint: its class, length and attributes, the code of
    the user's functions and classes in these and what that names, and ``version``. Samples are
    what :func:`aiacc.data.record.encode` takes. Every read gives a new copy.

    Collective: no. All processes of a machine that wrap an equal dataset in the same way share the
    memory, and all that give the same folder the disk, whatever job they are in.

    Args:
        dataset: Has ``__getitem__`` and ``__len__``. Its samples depend on their index only.
        memory: Bytes of the node's memory ("8GB", "8GiB" or a number), for all its processes
            together; or a folder of a memory file system and the bytes; None: none. No more than
            three quarters of what the machine, the container or the job has, or the file system;
            of /dev/shm, a quarter of which and at least 1 GiB is left to others, what is beyond
            that: nothing of a container's 64 MB.
        disk: Folder of a local disk, and the bytes that caches may have there, for all datasets
            together: records of others that nobody uses make room. They go to ``aiacc-cache`` in
            that folder, and stay when the job ends. Where nothing can be written, what is there is
            read.
        transform: Called with every sample after it was read, never kept.
        version: Changes the fingerprint; for datasets whose files have changed in place.
        fingerprint: Takes the place of what is found out about the dataset. Needed where something
            in it cannot be described, or differs between ranks.
        shard: What the nodes of a job keep. "replicas": each keeps what it reads, and every epoch
            is shuffled over all nodes; "node": each keeps an equal part, and reads no other, so
            that all nodes together keep as much as they have room for, and epochs are shuffled
            inside nodes; "neighbour": each keeps such a part, epochs are shuffled over all nodes,
            and samples come from the node that keeps them. `sampler` and `warmup` follow it.
        evict: "never": what is there stays, and what finds no room is fetched again each time, so
            that a scan of N samples hits the C that have room; "lru": the least recently used go,
            a 32nd part at a time.
        sync: Whether records are on the disk before they count (fsync). Without, a machine that
            loses its power may lose records, but never has wrong ones.
        requests: Samples that one process fetches at a time, in threads, of one batch. More than 1
            needs a dataset that several threads may ask at a time.
        retries: Repetitions of an attempt that failed with one of ``retry_on``, with pauses that
            double from 0.1 s to 10 s. The error of the last attempt is raised.
        retry_on: Classes of errors. By default OSError, but for missing files and rights.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument, or a dataset that cannot be described.
    """

    def __init__(
        self,
        dataset: Any,
        memory: int | str | tuple[str | Path, int | str] | None = "8GB",
        disk: tuple[str | Path, int | str] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        shard: Shard = "replicas",
        version: str = "",
        fingerprint: str | None = None,
        evict: Eviction = "never",
        sync: bool = False,
        requests: int = 1,
        retries: int = 3,
        retry_on: tuple[type[Exception], ...] = origin.TRANSIENT,
    ) -> None:
        arguments.check(
            locals(),
            shard=arguments.one_of(*SHARDS),
            fingerprint=arguments.or_none(arguments.TEXT),
        )
        is_class = isinstance(dataset, type)
        if is_class or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            given = f"class {dataset.__name__}" if is_class else f"a {type(dataset).__name__}"
            raise ValueError(
                f"{given} (expected a map-style dataset, with __len__ and __getitem__); "
                "CachedIterable takes iterables, CachedKeys functions of a key"
            )
        self.dataset = dataset
        self.transform = transform
        if fingerprint == "":
            raise ValueError(
                "fingerprint='' (expected a name of the dataset, or None); datasets of equal names "
                "are taken for the same"
            )
        if fingerprint is None:
            self.fingerprint = fingerprint_of(dataset, version)
        else:
            self.fingerprint = named(fingerprint, version)
        self._shard: Shard = shard
        self._requests = requests
        tiers = Tiers(
            folder_and_bytes(0 if memory is None else memory, "memory", SHARED_MEMORY),
            None if disk is None else folder_and_bytes(disk, "disk"),
            evict,
            sync,
            len(dataset),
        )
        self._keeps = memory is not None or disk is not None
        self._has_memory = tiers.memory[1] > 0
        self._store = Store(self.fingerprint, tiers)
        what = type(dataset).__name__
        tries = origin.Retries(retries, retry_on)
        self._source = origin.Source(
            dataset.__getitem__, self.fingerprint, self._store, tries, what
        )
        self._reported = self._store.statistics()
        self._digest: int | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """A sample, from the nearest place that has it, and transformed.

        Blocks: while it is fetched, by this process or by another one of the node.

        Raises:
            TypeError: ``index`` is no whole number.
            IndexError: There is no such sample.
            RecordError: The dataset returned what no record can hold.
            Exception: What the dataset raised.
        """
        return self._finish(self._source.get(self._index(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch, as `__getitem__`; those that are missing are fetched at a time."""
        numbers = [self._index(index) for index in indices]
        if self._requests == 1:
            return [self._finish(self._source.get(number)) for number in numbers]
        with ThreadPoolExecutor(self._requests) as pool:
            # Only what is absent: a sample that is there takes less time than handing it over.
            coming = {
                number: self._source.near(number) or pool.submit(self._source.get, number)
                for number in dict.fromkeys(numbers)
            }

            def taken(number: int) -> Any:
                if number not in coming:  # a second time
                    return self._source.get(number)
                one = coming.pop(number)
                return one.result() if isinstance(one, Future) else decode(one)

            return [self._finish(taken(number)) for number in numbers]

    def sampler(
        self,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        ahead: int = 0,
        reshard_every: int = 0,
        topology: Topology | None = None,
        patience_s: float = 60.0,
    ) -> ShardSampler:
        """Indices for this rank's DataLoader, by `shard`; its position can be saved.

        Every other sampler does, too; `fetching_ahead` wraps one.

        The first call fetches sample 0, and compares it with what the cache has for it. With shard
        "neighbour" the ranks compare it, too, when they exchange samples first.

        Collective: no.
        Blocks: while sample 0 is fetched.

        Args:
            shuffle: Whether every epoch has an order of its own.
            seed: Of the orders and of the division among nodes; equal on all ranks.
            drop_last: Whether samples are left out that cannot be divided equally among the ranks;
                some are read twice if not.
            ahead: See `fetching_ahead`. With shard "neighbour": samples of each rank that are taken
                from other nodes, or fetched, before their turn, 64 if it is 0; fewer where memory
                has no room for them.
            reshard_every: With shard "node": epochs after which samples are divided among the
                nodes anew, so that what ranks see together changes; what is fetched again is most
                of them.
            topology: Where this rank is; None: where the job says it is, if ``init`` was called.
            patience_s: With shard "neighbour": seconds that the ranks wait for each other, before
                they go on without. All must read equally many samples of each epoch.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: Another wrong argument, or nodes of different sizes without
                ``topology``; shard "neighbour" in a job of another size, or without memory; sample
                0 is another one here than for other processes with an equal fingerprint.
            Exception: What the dataset raised.
        """
        arguments.check(locals())
        epoch = first_epoch(len(self), self._shard, shuffle, seed, drop_last, reshard_every)
        place = place_of(topology)

        def at_epoch(number: int) -> None:
            if place.local_rank == 0:
                self.log_epoch(number)

        through: Callable[[Epoch, Sequence[Indices]], Iterator[int]]
        if self._shard == "neighbour" and len(place.local_sizes) > 1:
            check_job(place)
            if not self._has_memory:
                raise ValueError(
                    'shard="neighbour" without memory= (expected some: samples of other nodes '
                    'pass through it); give memory=, or shard="node"'
                )
            wants_everyones = True
            owner = orders.owners(epoch, place.local_sizes)
            self._source = dataclasses.replace(self._source, keeps=owner == place.node)
            fetcher = Fetcher(self._source.bring, self._requests, None)
            through = Exchange(
                self._source, place, owner, fetcher, ahead or _AHEAD, patience_s, self._checked()
            ).through
        else:
            self._checked()
            wants_everyones = False
            given = self.fetching_ahead((), ahead).through if ahead else iter

            def through(epoch: Epoch, lists: Sequence[Indices]) -> Iterator[int]:
                del epoch
                (mine,) = lists
                return given(_numbers(mine))

        return ShardSampler(epoch, place, self.fingerprint, through, at_epoch, wants_everyones)

    def fetching_ahead(
        self, sampler: Iterable[int], count: int = 256, *, start_method: str | None = None
    ) -> AheadOf:
        """A sampler with the same indices, whose samples are fetched before their turn.

        A process beside this one fetches them, `requests` at a time, into the node's memory or
        disk. It needs one of these, and more requests than 1 to be of much use.

        Args:
            sampler: Any iterable of indices; read ``count`` indices before they are given.
            count: How many samples ahead; fewer, if the window in memory is too small for them.
            start_method: How the process is started; None: as multiprocessing does.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: Another wrong argument; the cache has neither memory nor disk.
        """
        arguments.check(locals())
        if not self._keeps:
            raise ValueError("fetching ahead without memory= and disk= (expected one of them)")

        def reach() -> int:
            if not self._store.takes_ahead:  # everything would be fetched twice
                return 0
            found = self.statistics()
            mean = found.fetched_bytes / found.fetched if found.fetched else 0.0
            return how_far(count, self._store.window, mean)

        return AheadOf(Fetcher(self._source.bring, self._requests, start_method), sampler, reach)

    def warmup(
        self,
        indices: Sequence[int] | None = None,
        *,
        seed: int = 0,
        topology: Topology | None = None,
        progress: Progress | None = None,
    ) -> Statistics:
        """Fetch samples, `requests` at a time, before they are asked for.

        Collective: no; but the ranks of a node divide the work if all call it.
        Blocks: until they are there.

        Args:
            indices: Which; None: those that this node keeps by `shard`, divided among its ranks.
            seed: That of the sampler.
            topology: As for `sampler`.
            progress: Called with how many are done and of how many; None: a bar, on a terminal.

        Returns:
            What was counted meanwhile, by all processes of the node.

        Raises:
            TypeError: An argument of a wrong type.
            IndexError: There is no such sample; nothing was fetched.
            Exception: What the dataset raised.
        """
        arguments.check(locals())
        before = self.statistics()
        if indices is None:
            place = place_of(topology)
            epoch = first_epoch(len(self), self._shard, False, seed, False, 0)
            indices = orders.kept(epoch, place).tolist()
        else:
            indices = [self._index(index) for index in indices]
        if progress is None:
            progress = Bar("filling the cache") if sys.stderr.isatty() else quiet
        warm(self._source.bring, indices, self._requests, progress)
        return self.statistics().since(before)

    def log_epoch(self, number: int) -> Statistics:
        """Log one line about what the node has read since the last one, and return it."""
        arguments.check({"number": number}, number=arguments.whole(0))
        now = self.statistics()
        found, self._reported = now.since(self._reported), now
        if found.samples:
            log.follow_level()
            _logger.info("[data] epoch %d: %s", number, found.line())
        return found

    def state_dict(self) -> dict[str, str]:
        """Which dataset it is. Positions in an epoch are the sampler's."""
        return {"fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Check that a state is of an equal dataset.

        Raises:
            ValueError: It is not.
        """
        if state != self.state_dict():
            found = state.get("fingerprint") if isinstance(state, dict) else state
            raise ValueError(
                f"a state of dataset {found!r:.100} (expected {self.fingerprint!r}); "
                "load it with an equal dataset, or give both the same fingerprint="
            )

    def statistics(self) -> Statistics:
        """What all processes of the node have counted since the first of them came."""
        return self._store.statistics()

    def close(self) -> None:
        """End the use of the cache. The node's last user removes what is in memory."""
        self._store.close()

    def _index(self, index: int) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"index={index!r:.100} (expected the number of a sample)") from None
        length = len(self.dataset)
        if not -length <= number < length:
            raise IndexError(f"sample {number} of a dataset of {length}")
        return number % length

    def _checked(self) -> int:
        """A digest of sample 0, which the cache has for an equal fingerprint; 0 without any."""
        if self._digest is None:
            self._digest = self._source.check(0) if self._keeps and len(self) else 0
        return self._digest

    def _finish(self, sample: Any) -> Any:
        return sample if self.transform is None else self.transform(sample)


def _numbers(indices: Indices) -> Iterator[int]:
    """They as Python's integers, which take four times as much memory, some at a time."""
    for begin in range(0, len(indices), _AT_A_TIME):
        yield from indices[begin : begin + _AT_A_TIME].tolist()
