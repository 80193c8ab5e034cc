"""Bootstrap under torchrun, and under anything that sets RANK, WORLD_SIZE and MASTER_*.

The ranks meet in torch's TCPStore. Under torchrun the agent hosts it, and the port must not be
bound again. Otherwise rank 0 hosts it for as long as the process lives, in the way that
``torch.distributed.init_process_group`` does, so that the two share it in either order.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, NamedTuple

from aiacc.bootstrap.address import join_address, port_owner
from aiacc.bootstrap.processes import lack_of_addresses
from aiacc.bootstrap.provider import Backoff, Deadline, check_payload, new_nonce, rank_list
from aiacc.bootstrap.records import Record
from aiacc.bootstrap.untrusted import check_fields, read_object
from aiacc.config import TorchrunEnvironment
from aiacc.exceptions import BootstrapError

_MIN_TIMEOUT_S = 0.05
_DIAGNOSIS_S = 2.0
#: How much longer than asked an exchange may take, to find out who is missing.
_MARGIN_S = 5.0


class _Confirmation(NamedTuple):
    """Which entries a rank has seen, by their nonces, in rank order; "" for nobody's."""

    nonce: str
    seen: list[str]

    def encode(self) -> str:
        """The text to store."""
        return json.dumps(self._asdict())

    @staticmethod
    def decode(data: bytes) -> _Confirmation:
        """Inverse of `encode`; what cannot be read confirms nothing."""
        try:
            fields = read_object(data)
            check_fields(_Confirmation, fields)
            return _Confirmation(**fields)
        except (ValueError, TypeError):
            return _Confirmation("", [])


class TorchrunProvider:
    """Ranks that meet in a TCPStore; see `provider.Provider`.

    A store may hold entries of an earlier life of this job: torchrun keeps it, and the count of
    restarts too, when a node is replaced. So every rank writes a random nonce, confirms those that
    it saw, and accepts only entries whose writer has confirmed its own.
    """

    name = "torchrun"

    def __init__(
        self,
        environment: TorchrunEnvironment,
        *,
        generation: int,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = environment.rank
        self.size = environment.size
        self.local_rank = local_rank
        self.local_size = local_size
        self.generation = generation
        self.meeting_host = environment.master_addr
        self._environment = environment
        self._round = 0
        self._store: Any = None

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        _import_torch()  # which takes seconds the first time, and says nothing about the ranks
        result: Future[list[bytes]] = Future()

        def run() -> None:
            try:
                result.set_result(self._exchange(payload, timeout_s))
            except BaseException as error:
                result.set_exception(error)

        # torch waits without a limit for a store that is silent, so it must not be this thread.
        try:
            thread = threading.Thread(target=run, name="aiacc-torchrun", daemon=True)
            thread.start()
        except RuntimeError as error:
            raise BootstrapError(
                f"[bootstrap] torchrun: rank {self.rank} cannot make a thread ({error}); "
                + (
                    lack_of_addresses(1)
                    or "raise the limit of processes (ulimit -u, or pids.max of the container)"
                )
            ) from error
        try:
            return result.result(timeout_s + _MARGIN_S)
        except TimeoutError:
            if result.done():
                raise
            address = join_address(self._environment.master_addr, self._environment.master_port)
            raise BootstrapError(
                f"[bootstrap] torchrun: what listens at {address} did not "
                f"answer rank {self.rank} within {timeout_s:g} s; look whether that is the "
                "torchrun agent or rank 0, or another program: then choose another MASTER_PORT"
            ) from None
        finally:
            if result.done():
                thread.join()

    def _exchange(self, payload: bytes, timeout_s: float) -> list[bytes]:
        deadline = Deadline(timeout_s)
        backoff = Backoff()
        mine = Record(self.rank, self.size, self.generation, nonce=new_nonce())
        while True:
            self._store = _connect(self._environment, deadline.left_s())
            try:
                self._store.set(self._key("entry", self.rank), mine.encode(payload))
                records, payloads = self._confirmed(mine, deadline)
                self._forget_previous()
                break
            except BootstrapError:
                raise
            except RuntimeError as error:
                # Perhaps the store of a process group that rank 0 was just destroying.
                _disconnect(self._environment)
                if deadline.passed():
                    raise _lost(self._environment, error) from error
                backoff.pause(deadline)
        for rank, record in enumerate(records):
            record.check_against(mine, rank)
        self._round += 1
        return payloads

    def close(self) -> None:
        """Stop using the store; the connection serves the next provider."""
        self._store = None

    def _key(self, kind: str, rank: int) -> str:
        restart = self._environment.restart_count
        return f"aiacc/{restart}/{self.generation}/{self._round}/{kind}/{rank}"

    def _confirmed(self, mine: Record, deadline: Deadline) -> tuple[list[Record], list[bytes]]:
        """Entries of all ranks, once all have confirmed this rank's."""
        backoff = Backoff()
        while True:
            entries = [self._entry(*item) for item in enumerate(self._read("entry", deadline))]
            records = [record for record, _ in entries]
            confirmation = _Confirmation(mine.nonce, [record.nonce for record in records])
            self._store.set(self._key("seen", self.rank), confirmation.encode())
            confirmations = [_Confirmation.decode(data) for data in self._read("seen", deadline)]
            stale = [
                rank
                for rank, (record, other) in enumerate(zip(records, confirmations, strict=True))
                if other.nonce != record.nonce
                or len(other.seen) != self.size
                or other.seen[self.rank] != mine.nonce
            ]
            if not stale:
                return records, [payload for _, payload in entries]
            if deadline.passed():
                raise self._timeout(stale, deadline)
            backoff.pause(deadline)  # entries of an earlier life are about to be replaced

    def _entry(self, rank: int, data: bytes) -> tuple[Record, bytes]:
        try:
            return Record.decode(data)
        except ValueError as error:
            raise BootstrapError(
                f"[bootstrap] torchrun: what the store holds as entry of rank {rank} cannot be "
                f"read ({error}); install the same aiacc on every host, and let no other program "
                "use the keys aiacc/... of this store"
            ) from error

    def _read(self, kind: str, deadline: Deadline) -> list[bytes]:
        keys = [self._key(kind, rank) for rank in range(self.size)]
        try:
            self._store.wait(keys, timedelta(seconds=max(deadline.left_s(), _MIN_TIMEOUT_S)))
        except RuntimeError:
            if not deadline.passed():
                raise
            missing = self._absent(keys)
            if missing:
                raise self._timeout(missing, deadline) from None
        return [bytes(value) for value in self._store.multi_get(keys)]

    def _absent(self, keys: Sequence[str]) -> list[int]:
        self._store.set_timeout(timedelta(seconds=_DIAGNOSIS_S))
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def _timeout(self, missing: Sequence[int], deadline: Deadline) -> BootstrapError:
        return BootstrapError(
            f"[bootstrap] torchrun: {rank_list(missing)} of {self.size} did not come within "
            f"{deadline.timeout_s:g} s of rank {self.rank}; look whether every rank initialises, "
            "or hangs before it"
        )

    def _forget_previous(self) -> None:
        # Everybody has begun this exchange, so nobody still reads the previous one.
        for key in _previous:
            self._store.delete_key(key)
        _previous[:] = [self._key(kind, self.rank) for kind in ("entry", "seen")]


#: Keys of this rank's latest complete exchange.
_previous: list[str] = []

#: One connection per store for as long as the process lives: torch's server stalls for seconds
#: when clients come and go quickly, and a store that this process hosts must stay for the others.
_stores: dict[tuple[str, int], Any] = {}
_stores_lock = threading.Lock()


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise BootstrapError(
            f"[bootstrap] torchrun: the ranks meet in torch's TCPStore, but torch cannot be "
            f"imported: {error}; install the torch of torchrun in this environment"
        ) from error


def _connect(environment: TorchrunEnvironment, timeout_s: float) -> Any:
    address = (environment.master_addr, environment.master_port)
    hosts = environment.rank == 0 and not environment.agent_store
    with _stores_lock:
        store = _stores.get(address)
    if store is None:
        store = _new_store(environment, hosts, timeout_s)  # may hang, so without the lock
        with _stores_lock:
            _stores[address] = store
    return store


def _disconnect(environment: TorchrunEnvironment) -> None:
    with _stores_lock:
        _stores.pop((environment.master_addr, environment.master_port), None)


def _new_store(environment: TorchrunEnvironment, hosts: bool, timeout_s: float) -> Any:
    address = join_address(environment.master_addr, environment.master_port)
    try:
        return _import_torch().TCPStore(
            environment.master_addr,
            environment.master_port,
            is_master=hosts,
            timeout=timedelta(seconds=max(timeout_s, _MIN_TIMEOUT_S)),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, ValueError) as error:
        problem = str(error).splitlines()[0]
        owner = port_owner(environment.master_port) if hosts else ""
        if owner:
            raise BootstrapError(
                f"[bootstrap] torchrun: rank 0 cannot host the store on {address}: the port is "
                f"taken by {owner}; end that process or choose another MASTER_PORT on every rank "
                f"({problem})"
            ) from error
        raise BootstrapError(
            f"[bootstrap] torchrun: rank {environment.rank} did not reach the store at {address} "
            f"within {timeout_s:g} s; check that rank 0 or the torchrun agent runs there "
            f"and that MASTER_ADDR and MASTER_PORT are right ({problem})"
        ) from error


def _lost(environment: TorchrunEnvironment, error: RuntimeError) -> BootstrapError:
    host = "the torchrun agent" if environment.agent_store else "rank 0"
    address = join_address(environment.master_addr, environment.master_port)
    return BootstrapError(
        f"[bootstrap] torchrun: the store at {address} "
        f"failed: {str(error).splitlines()[0]}; look whether {host} has ended"
    )
