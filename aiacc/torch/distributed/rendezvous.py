"""Lets `init_process_group` find its ranks by what launched them, not only by torch's variables.

torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets. mpirun, srun and
aiaccrun do not, so torch gives up there. This takes its place then: the ranks find each other as
those of ``hvd.init()`` do, and rank 0 hosts the store that torch wants.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from aiacc import _core, siblings
from aiacc.bootstrap import Provider, host_id, select_provider
from aiacc.bootstrap.address import split_address
from aiacc.bootstrap.interfaces import observe
from aiacc.bootstrap.look import settle
from aiacc.bootstrap.provider import AloneProvider
from aiacc.bootstrap.reach import Presence
from aiacc.bootstrap.selection import told
from aiacc.bootstrap.untrusted import read_object
from aiacc.config import launcher_environment
from aiacc.exceptions import BootstrapError
from aiacc.torch.distributed.work import seconds_of

Found = tuple[Any, int, int]
Handler = Callable[..., Iterator[Found]]

_SCHEME = "env"
#: Whether the ranks of the latest rendezvous were found here, and nobody has asked yet.
_found_here = False


def register() -> None:
    """Stand in for torch when its variables are absent. May be called again.

    torch has no way to replace a handler; a torch without this table keeps its own.
    """
    module = importlib.import_module("torch.distributed.rendezvous")  # hidden by a function
    handlers = getattr(module, "_rendezvous_handlers", {})
    torchs = handlers.get(_SCHEME)
    if torchs is not None and not isinstance(torchs, _Handler):
        handlers[_SCHEME] = _Handler(torchs)


def take_found_here() -> bool:
    """Whether the group that is being made owes its ranks to this module. Answers once."""
    global _found_here
    found, _found_here = _found_here, False
    return found


class _Handler:
    """What torch calls for the address "env://", with its own handler inside."""

    def __init__(self, torchs: Handler) -> None:
        self._torchs = torchs

    def __call__(self, url: str, **options: Any) -> Iterator[Found]:
        """Yield store, rank and size, once; see ``torch.distributed.rendezvous``."""
        global _found_here
        _found_here = False
        torchs = self._torchs(url, **options)
        try:
            first = next(torchs)
        except ValueError:  # a variable is missing
            provider = _launched()
            if provider is None:
                raise
            first = _meet(provider, url, options.get("timeout", timedelta.max))
            _found_here = True
        yield first
        yield from torchs


def _launched() -> Provider | None:
    """How the ranks find each other; None if nothing says that there are any."""
    environment, config = launcher_environment(), _core.config()
    if problem := siblings.error_of_child(told(environment, config), chosen=True):
        raise BootstrapError(problem) from None
    provider = select_provider(environment, config)
    return None if isinstance(provider, AloneProvider) and not provider.told else provider


def _meet(provider: Provider, url: str, timeout: timedelta) -> Found:
    rank, size = provider.rank, provider.size
    timeout_s = min(float(_core.config()["connect_timeout_s"]), seconds_of(timeout))
    store: Any = None
    try:
        for name, value in (("rank", rank), ("world_size", size)):
            given = parse_qs(urlparse(url).query).get(name, [str(value)])[0]
            if given != str(value):
                raise ValueError(
                    f"init_process_group({name}={given}), but {provider.name} says {value} "
                    f"(expected equal); leave out {name}"
                )
        presence = observe(provider.meeting_host, str(_core.config()["iface"]))
        if rank == 0:
            store = _store("localhost", 0, True, timeout_s)
            presence = dataclasses.replace(presence, port=store.port)
        rows = provider.all_gather(_row(presence), timeout_s=timeout_s)
        table = [_read(row) for row in rows]
        reach = settle(
            provider,
            [presence for presence, _ in table],
            [host for _, host in table],
            timeout_s=timeout_s,
        )
        if store is None:
            host, port = split_address(reach.seen_by(rank)[0])
            store = _store(host, port, False, timeout_s)
    finally:
        provider.close()
    return store, rank, size


def _row(presence: Presence) -> bytes:
    return json.dumps({"presence": dataclasses.asdict(presence), "host": host_id()}).encode()


def _read(row: bytes) -> tuple[Presence, str]:
    try:
        fields = read_object(row)
        return Presence.from_fields(fields["presence"]), str(fields["host"])
    except (ValueError, TypeError, KeyError) as error:
        raise BootstrapError(
            f"[bootstrap] a rank of init_process_group sent a row that cannot be read ({error}); "
            "install the same aiacc on every host"
        ) from error


def _store(host: str, port: int, is_master: bool, timeout_s: float) -> Any:
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=is_master,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        what = "cannot be hosted" if is_master else "is not reached"
        raise BootstrapError(
            f"[bootstrap] the store of init_process_group {what} on {host}:{port}: "
            f"{str(error).splitlines()[0]}; look whether rank 0 has ended, and set AIACC_IFACE if "
            "its address is not one that the others reach"
        ) from error
