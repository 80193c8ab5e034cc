"""A dataset whose samples are fetched once and come from the node's memory afterwards."""

from __future__ import annotations

import operator
import os
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiacc.data import layout, origin, record
from aiacc.data.arena import Arena, CorruptRecordError
from aiacc.data.fingerprint import fingerprint_of, key_of, named
from aiacc.data.layout import Eviction
from aiacc.data.sizes import folder_and_bytes
from aiacc.data.statistics import Statistics, counter_of, from_counters

_SHARED_MEMORY = Path("/dev/shm")
#: Samples of a node that are fetched twice.
_COMPARED = 3
#: A reader that waits for another process which fetches the same sample gives up after so long.
_PATIENCE_S = 60.0


class CachedDataset:
    """Wraps a map-style dataset; what it has returned once is not asked of it again.

    The samples that are kept must not be augmented at random: give random augmentation as
    ``transform``. Where the dataset itself augments there is a warning: a few samples are fetched
    twice, and compared.

    Records are found by the dataset's fingerprint: its class, length and attributes, and
    ``version``. Samples are what :func:`aiacc.data.record.encode` takes. Every read gives a new
    copy.

    Collective: no. All processes of a machine that wrap an equal dataset in the same way share the
        memory,
    whatever job they are in.

    Args:
        dataset: Has ``__getitem__`` and ``__len__``. Its samples depend on their index only.
        memory: Bytes of the node's memory ("8GB", "8GiB" or a number), for all its processes
            together; or a folder of a memory file system and the bytes; None: none.
        transform: Called with every sample after it was read, never kept.
        version: Changes the fingerprint; for datasets whose files have changed in place.
        fingerprint: Takes the place of what is found out about the dataset.
        evict: "never": what is there stays, and what finds no room is fetched again each time, so
            that a scan of N samples hits C of C that have room; "lru": the least recently used go,
            in 32 parts.
        requests: Samples that one process fetches at a time, in threads, of one batch. More than 1
            needs a dataset that several threads may ask at a time.
        retries: Repetitions of an attempt that failed with one of ``retry_on``, with pauses that
            double from 0.1 s to 10 s. The error of the last attempt is raised.
        retry_on: Classes of errors. By default OSError, but for missing files and rights.

    Raises:
        ValueError: An argument that is none of these.
    """

    def __init__(
        self,
        dataset: Any,
        memory: int | str | tuple[str | Path, int | str] | None = "8GB",
        *,
        transform: Callable[[Any], Any] | None = None,
        version: str = "",
        fingerprint: str | None = None,
        evict: Eviction = "never",
        requests: int = 1,
        retries: int = 3,
        retry_on: tuple[type[Exception], ...] = origin.TRANSIENT,
    ) -> None:
        if evict not in ("never", "lru"):
            raise ValueError(f'evict={evict!r} (expected "never" or "lru")')
        if requests < 1 or retries < 0:
            raise ValueError(
                f"requests={requests}, retries={retries} (expected at least 1 and at least 0)"
            )
        self.dataset = dataset
        self.transform = transform
        self.fingerprint = (
            fingerprint_of(dataset, version) if fingerprint is None else named(fingerprint, version)
        )
        self._evict: Eviction = evict
        self._requests = requests
        self._retries = retries
        self._retry_on = retry_on
        self._memory = folder_and_bytes(0 if memory is None else memory, "memory", _SHARED_MEMORY)
        self._open()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """A sample, from the nearest place that has it, and transformed.

        Blocks: while it is fetched, by this process or by another one of the node.

        Raises:
            IndexError: There is no such sample.
            RecordError: The dataset returned what no record can hold.
            Exception: What the dataset raised.
        """
        return self._finish(self._sample(self._index(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch, as `__getitem__`; those that are missing are fetched at a time."""
        numbers = [self._index(index) for index in indices]
        if self._requests == 1:
            return [self._finish(self._sample(number)) for number in numbers]
        distinct = dict.fromkeys(numbers)
        absent = [number for number in distinct if self._key(number) not in self._arena]
        with ThreadPoolExecutor(min(self._requests, max(1, len(absent)))) as pool:
            # Only what is absent: a sample that is there takes less time than handing it over.
            coming = {number: pool.submit(self._sample, number) for number in absent}
            return [
                self._finish(
                    coming.pop(number).result() if number in coming else self._sample(number)
                )
                for number in numbers
            ]

    def statistics(self) -> Statistics:
        """What all processes of the node have counted since the first of them came."""
        return from_counters(self._arena.counters())

    def close(self) -> None:
        """End the use of the cache. The node's last user removes what is in memory."""
        self._closing()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_arena", "_closing", "_fetching", "_mutex", "_pid")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def _open(self) -> None:
        folder, size = self._memory
        plan = layout.plan(size, len(self.dataset), self._evict)
        name = f"{self.fingerprint}-{size}-{self._evict}"
        try:
            self._arena = Arena(folder, name, plan, self._evict)
        except OSError as error:
            warnings.warn(
                f"no memory of the node is used: {error}; give memory= a folder in memory that "
                "this user may write to, and no more bytes than there are",
                stacklevel=3,
            )
            nothing = layout.plan(0, 0, self._evict)
            self._arena = Arena(Path(tempfile.gettempdir()), name, nothing, self._evict)
        self._closing = weakref.finalize(self, self._arena.close)
        self._forget_threads()

    def _forget_threads(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._fetching: dict[bytes, Future[bytes]] = {}

    def _index(self, index: int) -> int:
        number = operator.index(index)
        length = len(self.dataset)
        if not -length <= number < length:
            raise IndexError(f"sample {number} of a dataset of {length}")
        return number % length

    def _key(self, number: int) -> bytes:
        return key_of(self.fingerprint, number)

    def _finish(self, sample: Any) -> Any:
        return sample if self.transform is None else self.transform(sample)

    def _sample(self, number: int) -> Any:
        key = self._key(number)
        found = self._from_memory(key)
        if found is None:
            with self._stall():
                found = bytearray(self._absent(key, number))
        return record.decode(found)

    def _from_memory(self, key: bytes) -> bytearray | None:
        try:
            found = self._arena.read(key)
        except CorruptRecordError:
            self._count("corrupt")
            return None
        if found is not None:
            self._count("memory_hits")
            self._count("memory_bytes", len(found))
        return found

    def _absent(self, key: bytes, number: int) -> bytes | bytearray:
        """The record of a sample that is not in memory: fetched by one thread of one process."""
        if self._pid != os.getpid():  # threads of the process that has forked this one are not here
            self._forget_threads()
        with self._mutex:
            coming = self._fetching.get(key)
            mine = coming is None
            if coming is None:
                coming = self._fetching[key] = Future()
        if not mine:
            return coming.result()
        try:
            with self._arena.claim(key, _PATIENCE_S):
                fetched = self._from_memory(key)  # somebody else has fetched it meanwhile
                found = self._fetch(key, number) if fetched is None else fetched
        except BaseException as error:
            coming.set_exception(error)
            raise
        else:
            coming.set_result(bytes(found))
            return found
        finally:
            with self._mutex:
                del self._fetching[key]

    def _fetch(self, key: bytes, number: int) -> bytes:
        data = record.encode(self._from_origin(number))
        if self.statistics().compared < _COMPARED:
            self._count("compared")
            if record.encode(self._from_origin(number)) != data:
                warnings.warn(
                    f"sample {number} of {type(self.dataset).__name__} was another one when it was "
                    "fetched again: every epoch will see the one that was kept; move random "
                    "augmentation from the dataset to transform=",
                    stacklevel=2,
                )
        self._count("fetched")
        self._count("fetched_bytes", len(data))
        if not self._arena.write(key, data):
            self._count("refused")
        return data

    def _from_origin(self, number: int) -> Any:
        try:
            return origin.fetch(
                lambda: self.dataset[number],
                self._retries,
                self._retry_on,
                lambda: self._count("retries"),
            )
        except Exception:
            self._count("failures")
            raise

    @contextmanager
    def _stall(self) -> Iterator[None]:
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self._count("stall_ns", time.monotonic_ns() - begin)

    def _count(self, name: str, amount: int = 1) -> None:
        self._arena.count(counter_of(name), amount)
