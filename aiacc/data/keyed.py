"""Sources that are no map-style datasets: functions of a key, and passes over an iterable."""

from __future__ import annotations

import importlib
import itertools
import operator
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from aiacc import arguments
from aiacc.data import record
from aiacc.data.fingerprint import fingerprint_of, key_of, named
from aiacc.data.layout import Eviction
from aiacc.data.origin import TRANSIENT, Retries, Source
from aiacc.data.sizes import SHARED_MEMORY, folder_and_bytes
from aiacc.data.statistics import Statistics
from aiacc.data.store import Store, Tiers


class CachedKeys:
    """Wraps a function of a key: ``cached["train/000017.jpg"]`` calls it once.

    For keyed sources of every kind, a ``tf.data`` pipeline of names or an IterableDataset among
    them. What `CachedDataset` says about memory, disk, shared processes, samples and augmentation
    holds here, too.

    Args:
        read: Returns the sample of a key: an integer, str or bytes, as it was given (TensorFlow
            gives names as bytes). Its result depends on the key only.
        fingerprint: Names the source: records of equal names and versions are the same.
        memory: As for `CachedDataset`.
        disk: As for `CachedDataset`.
        version: Changes the fingerprint.
        evict: As for `CachedDataset`.
        retries: As for `CachedDataset`.
        retry_on: As for `CachedDataset`.

    Raises:
        TypeError: ``read`` is no function, or another argument of a wrong type.
        ValueError: Another wrong argument.
    """

    def __init__(
        self,
        read: Callable[[Any], Any],
        fingerprint: str,
        memory: int | str | tuple[str | Path, int | str] | None = "8GB",
        disk: tuple[str | Path, int | str] | None = None,
        *,
        version: str = "",
        evict: Eviction = "never",
        retries: int = 3,
        retry_on: tuple[type[Exception], ...] = TRANSIENT,
    ) -> None:
        if not callable(read):
            raise TypeError(f"read is a {type(read).__name__} (expected a function of a key)")
        arguments.check(locals())
        if not isinstance(fingerprint, str) or not fingerprint:
            raise ValueError(
                f"fingerprint={fingerprint!r} (expected a name of the source); records of equal "
                "names are taken for the same"
            )
        tiers = Tiers(
            folder_and_bytes(0 if memory is None else memory, "memory", SHARED_MEMORY),
            None if disk is None else folder_and_bytes(disk, "disk"),
            evict,
        )
        self.fingerprint = named(fingerprint, version)
        self._store = Store(self.fingerprint, tiers)
        self._source = Source(
            read, self.fingerprint, self._store, Retries(retries, retry_on), fingerprint
        )

    def __getitem__(self, key: int | str | bytes) -> Any:
        """A sample, from the nearest place that has it.

        Blocks: while it is fetched, by this process or by another one of the node.

        Raises:
            TypeError: The key is no integer (of Python or NumPy), str or bytes.
            RecordError: The function returned what no record can hold.
            Exception: What the function raised.
        """
        if not isinstance(key, str | bytes):
            try:
                key = operator.index(key)
            except TypeError:
                raise TypeError(f"key {key!r} (expected an integer, a str or bytes)") from None
        return self._source.get(key)

    def statistics(self) -> Statistics:
        """What all processes of the node have counted since the first of them came."""
        return self._store.statistics()

    def close(self) -> None:
        """End the use of the cache. The node's last user removes what is in memory."""
        self._store.close()


_SOURCE = arguments.Rule(
    "an iterable, or a function that returns one",
    lambda source: isinstance(source, Iterable) or callable(source),
)


class CachedIterable:
    """Wraps an iterable whose passes give the same samples in the same order.

    A pass takes samples from the cache by their position, and goes to the source where one is
    missing: from there on the source is read, for it cannot be entered in the middle. So give it
    room for everything, or a disk; and shuffle behind it.

    Of a ``tf.data.Dataset`` the samples are NumPy arrays. Each worker of a torch DataLoader has
    passes of its own: the source divides samples among workers, or does not, as without a cache.

    Args:
        source: Iterable that can be iterated again (so no generator), or a function that returns
            one.
        memory: As for `CachedDataset`.
        disk: As for `CachedDataset`.
        part: Which part of the data the source gives here, if it is not the same on all ranks, for
            example ``f"{rank} of {size}"``.
        version: Changes the fingerprint.
        fingerprint: Takes the place of what is found out about the source; a ``tf.data.Dataset``
            needs one, because nothing can be found out about it.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument.
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        memory: int | str | tuple[str | Path, int | str] | None = "8GB",
        disk: tuple[str | Path, int | str] | None = None,
        *,
        part: str = "",
        version: str = "",
        fingerprint: str | None = None,
    ) -> None:
        arguments.check(locals(), source=_SOURCE, fingerprint=arguments.or_none(arguments.TEXT))
        if fingerprint is None and hasattr(source, "as_numpy_iterator"):
            raise ValueError(
                "fingerprint=None for a tf.data.Dataset (expected a name for it); records of equal "
                "names are taken for the same"
            )
        if isinstance(source, types.GeneratorType):
            raise ValueError(
                f"a generator, {source.__qualname__}() (expected an iterable that can be iterated "
                "again, or a function that returns one): its arguments cannot be found out, and "
                "it gives one pass only; pass the function, lambda: ..., in its place"
            )
        tiers = Tiers(
            folder_and_bytes(0 if memory is None else memory, "memory", SHARED_MEMORY),
            None if disk is None else folder_and_bytes(disk, "disk"),
        )
        name = fingerprint_of(source) if fingerprint is None else fingerprint
        self.source = source
        self.fingerprint = named(name, version)
        self._part = part
        self._told = False
        self._cached = Store(self.fingerprint, tiers)

    def __iter__(self) -> Iterator[Any]:
        """One pass.

        Blocks: while the source is read.

        Raises:
            RecordError: The source gave what no record can hold.
            Exception: What the source raised.
        """
        prefix = f"{self._part} {_worker()}"
        source: Iterator[Any] | None = None
        for position in itertools.count():
            key = key_of(self.fingerprint, f"{prefix} {position}")
            data = self._cached.find(key) if source is None else None
            if data is None:
                if source is None:
                    source = itertools.islice(self._read(), position, None)
                data = self._next(source, key)
            if data == _END:
                return
            yield record.decode(data)

    def for_torch(self) -> Any:
        """The same as a torch IterableDataset, for its DataLoader."""
        return importlib.import_module("aiacc.data.torch_iterable").TorchIterable(self)

    def _next(self, source: Iterator[Any], key: bytes) -> bytearray:
        sample = next(source, _END)
        encoded = _END if sample is _END else record.encode(sample)
        kept = self._cached.obtain(key, lambda: encoded)
        if kept != encoded and not self._told:
            self._told = True
            warnings.warn(
                "a pass over the source gave another sample than the pass before: the one that was "
                "kept is used; shuffle and augment behind the cache",
                stacklevel=3,
            )
        return kept

    def statistics(self) -> Statistics:
        """What all processes of the node have counted since the first of them came."""
        return self._cached.statistics()

    def close(self) -> None:
        """End the use of the cache. The node's last user removes what is in memory."""
        self._cached.close()

    def _read(self) -> Iterator[Any]:
        source = self.source() if callable(self.source) else self.source
        numpy = getattr(source, "as_numpy_iterator", None)
        return iter(source) if numpy is None else numpy()


#: The record behind the last one.
_END = b"aiacc: the end of a pass"


def _worker() -> str:
    """Which worker of a torch DataLoader this process is."""
    torch = sys.modules.get("torch.utils.data")
    info = None if torch is None else torch.get_worker_info()
    return "" if info is None else f"{info.id} of {info.num_workers}"
