"""Where samples come from at first: the user's dataset, which may fail for a while."""

from __future__ import annotations

import hashlib
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiacc.data import record
from aiacc.data.fingerprint import key_of
from aiacc.data.store import Store

#: Errors that another attempt may not meet.
TRANSIENT: tuple[type[Exception], ...] = (OSError,)
#: Those of them that it would meet again.
PERMANENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


#: Samples of a node that are fetched twice.
_COMPARED = 3


@dataclass(frozen=True)
class Retries:
    """How often an attempt is made again, and after which errors."""

    count: int = 3
    errors: tuple[type[Exception], ...] = TRANSIENT

    def __post_init__(self) -> None:
        classes = self.errors if isinstance(self.errors, tuple) else (self.errors,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in classes):
            raise ValueError(f"retry_on={self.errors!r} (expected a tuple of classes of errors)")


@dataclass(frozen=True)
class Source:
    """Samples by name, from the store if it has them, and from the user's function if not."""

    read: Callable[[Any], Any]
    fingerprint: str
    store: Store
    retries: Retries
    #: What is said in warnings.
    what: str
    #: Whether this node keeps each sample, by its index; None: all of them.
    keeps: NDArray[np.bool_] | None = None

    def key(self, name: int | str | bytes) -> bytes:
        """The key of a sample in the store."""
        return key_of(self.fingerprint, name)

    def get(self, name: Any) -> Any:
        """A sample; a copy of the caller's own."""
        stays = self._stays(name)
        return record.decode(self.store.obtain(self.key(name), lambda: self.fetch(name), stays))

    def near(self, name: Any) -> bytearray | None:
        """The record of a sample that is in memory, a copy; None if it is not."""
        return self.store.from_memory(self.key(name))

    def bring(self, name: Any) -> None:
        """Get a sample to where others find it."""
        self.store.bring(self.key(name), lambda: self.fetch(name), self._stays(name))

    def fetch(self, name: Any) -> bytes:
        """The record of a sample, from the user's function."""
        data = record.encode(self._attempts(name))
        if not self.store.has_counted("compared", _COMPARED):
            self.store.count("compared")
            if record.encode(self._attempts(name)) != data:
                warnings.warn(
                    f"sample {name} of {self.what} was another one when it was fetched again: "
                    "every epoch will see the one that was kept; move random augmentation behind "
                    "the cache, from a dataset to transform=",
                    stacklevel=2,
                )
        return data

    def check(self, name: Any) -> int:
        """Fetch a sample, and see that the cache has the same of an equal fingerprint.

        Returns:
            A digest of the sample's record, 64 bits with a sign.

        Raises:
            ValueError: The cache has another one, of another process or of an earlier job.
            Exception: What the user's function raised.
        """
        data = record.encode(self._attempts(name))
        if self.keeps is None:  # otherwise the ranks compare digests
            self.store.bring(self.key(name), lambda: data)
        kept = self.store.find(self.key(name), lent=True)
        # A sample that is augmented at random is another one each time, of which `fetch` warns.
        if kept not in (None, data) and record.encode(self._attempts(name)) == data:
            raise ValueError(
                f"sample {name} of {self.what} is another one here than in the cache, where one of "
                f"an equal fingerprint is kept, {self.fingerprint} (expected equal samples): the "
                "datasets of two ranks, or of this job and an earlier one, differ; give each a "
                "fingerprint= of its own, or another version="
            )
        found = hashlib.blake2b(data, digest_size=8).digest()
        return int.from_bytes(found, "little", signed=True)

    def _stays(self, name: Any) -> bool:
        return self.keeps is None or bool(self.keeps[name])

    def _attempts(self, name: Any) -> Any:
        try:
            return fetch(lambda: self.read(name), self.retries, lambda: self.store.count("retries"))
        except Exception:
            self.store.count("failures")
            raise


def pause_before(attempt: int, chance: float) -> float:
    """Seconds to wait before the ``attempt``-th repetition, from 1. Pure.

    It doubles from 0.1 s to 10 s, and ``chance``, from 0 to 1, makes it shorter by up to one half,
    so that those who failed together do not come back together.
    """
    return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S) * (1 - chance / 2)


def fetch(read: Callable[[], Any], retries: Retries, on_retry: Callable[[], None]) -> Any:
    """The result of ``read``, repeated after errors that may pass.

    Blocks: as ``read`` does, and in the pauses between attempts.

    Raises:
        Exception: What the last attempt raised.
    """
    for attempt in range(1, retries.count + 1):
        try:
            return read()
        except retries.errors as error:
            if isinstance(error, PERMANENT) and not set(PERMANENT) & set(retries.errors):
                raise
            on_retry()
            time.sleep(pause_before(attempt, random.random()))
    return read()
