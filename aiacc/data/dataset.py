"""A dataset whose samples are fetched once, and come from near by afterwards."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiacc.data import origin, record
from aiacc.data.fingerprint import fingerprint_of, key_of, named
from aiacc.data.layout import Eviction
from aiacc.data.sizes import folder_and_bytes
from aiacc.data.statistics import Statistics
from aiacc.data.store import Store, Tiers

_SHARED_MEMORY = Path("/dev/shm")
#: Samples of a node that are fetched twice.
_COMPARED = 3


class CachedDataset:
    """Wraps a map-style dataset; what it has returned once is not asked of it again.

    The samples that are kept must not be augmented at random: give random augmentation as
    ``transform``. Where the dataset itself augments there is a warning: a few samples are fetched
    twice, and compared.

    Records are found by the dataset's fingerprint: its class, length and attributes, and
    ``version``. Samples are what :func:`aiacc.data.record.encode` takes. Every read gives a new
    copy.

    Collective: no. All processes of a machine that wrap an equal dataset in the same way share the
    memory, and all that give the same folder the disk, whatever job they are in.

    Args:
        dataset: Has ``__getitem__`` and ``__len__``. Its samples depend on their index only.
        memory: Bytes of the node's memory ("8GB", "8GiB" or a number), for all its processes
            together; or a folder of a memory file system and the bytes; None: none.
        disk: Folder of a local disk, and the bytes that caches may have there, for all datasets
            together: records of others that nobody uses make room. They go to ``aiacc-cache`` in
            that folder, and stay when the job ends. Where nothing can be written, what is there is
            read.
        transform: Called with every sample after it was read, never kept.
        version: Changes the fingerprint; for datasets whose files have changed in place.
        fingerprint: Takes the place of what is found out about the dataset.
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
        ValueError: An argument that is none of these.
    """

    def __init__(
        self,
        dataset: Any,
        memory: int | str | tuple[str | Path, int | str] | None = "8GB",
        disk: tuple[str | Path, int | str] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        version: str = "",
        fingerprint: str | None = None,
        evict: Eviction = "never",
        sync: bool = False,
        requests: int = 1,
        retries: int = 3,
        retry_on: tuple[type[Exception], ...] = origin.TRANSIENT,
    ) -> None:
        if requests < 1 or retries < 0:
            raise ValueError(
                f"requests={requests}, retries={retries} (expected at least 1 and at least 0)"
            )
        self.dataset = dataset
        self.transform = transform
        if fingerprint is None:
            self.fingerprint = fingerprint_of(dataset, version)
        else:
            self.fingerprint = named(fingerprint, version)
        self._requests = requests
        self._retries = retries
        self._retry_on = retry_on
        tiers = Tiers(
            folder_and_bytes(0 if memory is None else memory, "memory", _SHARED_MEMORY),
            None if disk is None else folder_and_bytes(disk, "disk"),
            evict,
            sync,
            len(dataset),
        )
        self._store = Store(self.fingerprint, tiers)

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
        absent = [number for number in distinct if not self._store.in_memory(self._key(number))]
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
        return self._store.statistics()

    def close(self) -> None:
        """End the use of the cache. The node's last user removes what is in memory."""
        self._store.close()

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
        found = self._store.obtain(self._key(number), lambda: self._fetch(number))
        return record.decode(found)

    def _fetch(self, number: int) -> bytes:
        data = record.encode(self._from_origin(number))
        if self._store.statistics().compared < _COMPARED:
            self._store.count("compared")
            if record.encode(self._from_origin(number)) != data:
                warnings.warn(
                    f"sample {number} of {type(self.dataset).__name__} was another one when it was "
                    "fetched again: every epoch will see the one that was kept; move random "
                    "augmentation from the dataset to transform=",
                    stacklevel=2,
                )
        return data

    def _from_origin(self, number: int) -> Any:
        try:
            return origin.fetch(
                lambda: self.dataset[number],
                self._retries,
                self._retry_on,
                lambda: self._store.count("retries"),
            )
        except Exception:
            self._store.count("failures")
            raise
