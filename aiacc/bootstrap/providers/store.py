"""Bootstrap over a store of torch's, which ``torch.distributed.init_process_group`` has opened."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from aiacc.bootstrap.provider import GENERATIONS, Deadline, check_payload, rank_list
from aiacc.config import TorchrunEnvironment
from aiacc.exceptions import BootstrapError


class StoreProvider:
    """Ranks that meet in a store which they all have already; see `provider.Provider`.

    Args:
        store: A ``torch.distributed.Store`` that belongs to this group alone.
        rank: Number of this process.
        size: Number of processes.
        limit_s: Seconds that torch was told to wait for the others, at most.
    """

    name = "torch store"
    local_rank = None
    local_size = None

    def __init__(self, store: Any, rank: int, size: int, limit_s: float = math.inf) -> None:
        self.rank = rank
        self.size = size
        self.generation = GENERATIONS.next()
        self.meeting_host, self._port = _address_of(store)
        self._store = store
        self._limit_s = limit_s
        self._round = 0

    def is_of(self, launcher: TorchrunEnvironment | None) -> bool:
        """Whether the ranks and the store are those that torchrun's variables name."""
        return launcher is not None and (
            (self.rank, self.size, self.meeting_host, self._port)
            == (launcher.rank, launcher.size, launcher.master_addr, launcher.master_port)
        )

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        timeout_s = min(timeout_s, self._limit_s)
        deadline = Deadline(timeout_s)
        # A store may outlive the group: torchrun's agent keeps it for the next one of this process.
        prefix = f"aiacc/{self.generation}/{self._round}"
        keys = [f"{prefix}/{rank}" for rank in range(self.size)]
        self._round += 1
        try:
            self._store.set(keys[self.rank], payload)
            self._store.wait(keys, timedelta(seconds=timeout_s))
            return [bytes(self._store.get(key)) for key in keys]
        except RuntimeError as error:  # torch's for a timeout too
            if not deadline.passed():
                problem = str(error).splitlines()[0]
                raise BootstrapError(
                    f"[bootstrap] {self.name}: rank {self.rank} lost the store of "
                    f"init_process_group: {problem}; look whether the rank that hosts it has ended"
                ) from error
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise BootstrapError(
                f"[bootstrap] {self.name}: {rank_list(missing)} of {self.size} did not come within "
                f"{timeout_s:g} s of rank {self.rank}; look whether every rank calls "
                'init_process_group("aiacc")'
            ) from error

    def close(self) -> None:
        """The store belongs to torch."""


def _address_of(store: Any) -> tuple[str, int]:
    """Where a TCPStore below prefixes is; ("", 0) for another store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "")), int(getattr(store, "port", 0))
