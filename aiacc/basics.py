"""Start and end of the runtime, and who this process is in the job."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence

from aiacc import _core, startup
from aiacc.bootstrap import Provider
from aiacc.config import horovod_variables
from aiacc.horovod_variables import warning_about
from aiacc.process_sets import ProcessSet, global_process_set

_lock = threading.Lock()
_observers: list[weakref.WeakMethod[Callable[[], None]]] = []
_atexit_pid = 0
_homogeneous = False


def init(
    comm: Sequence[int] | object | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Find the other ranks and start the runtime. Does nothing if it is started already.

    After a fatal error call `shutdown` first.

    Collective: every rank, equally often.
    Blocks: until all ranks have come, at most AIACC_CONNECT_TIMEOUT_S.

    Args:
        comm: Only None, all ranks that the launcher started, is available yet.
        process_sets: Only None or an empty list is available yet.

    Raises:
        ValueError: An argument that is not available, or a variable of the environment that does
            not parse.
        BootstrapError: The ranks could not find each other, or do not fit together.
        CollectiveError: The ranks could not connect. Nothing is left open.
    """
    if comm is not None:
        raise ValueError(
            f"comm={comm!r} (expected None); subsets of ranks and MPI communicators are not "
            "available yet: start the job with exactly the ranks that it should have"
        )
    if process_sets:
        raise ValueError(
            f"process_sets={process_sets!r} (expected None); process sets are not available yet"
        )
    _begin(None)


def init_through(provider: Provider) -> None:
    """`init` by ranks that find each other through ``provider``, whatever launched them.

    Collective: every rank.
    Blocks: as `init` does.

    Raises:
        BootstrapError: The ranks do not fit together.
        CollectiveError: The ranks could not connect. Nothing is left open.
    """
    _begin(provider)


def at_init(method: Callable[[], None]) -> None:
    """Call the bound ``method`` after every later `init`, as long as its object lives."""
    with _lock:
        _observers.append(weakref.WeakMethod(method))


def shutdown() -> None:
    """End the runtime; outstanding operations fail with `ShutdownError`.

    Other ranks learn of it. Idempotent; `init` may be called again.

    Collective: no.
    Blocks: until the threads of the runtime have ended, which takes milliseconds.
    """
    with _lock:
        _core.shutdown()
        global_process_set.ranks = None


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return _core.is_initialized()


def rank() -> int:
    """Number of this process in the job. ValueError before `init`."""
    _check_initialized()
    return _core.rank()


def size() -> int:
    """Number of processes in the job. ValueError before `init`."""
    _check_initialized()
    return _core.size()


def local_rank() -> int:
    """Number of this process on its host. ValueError before `init`."""
    _check_initialized()
    return _core.local_rank()


def local_size() -> int:
    """Number of processes on this host. ValueError before `init`."""
    _check_initialized()
    return _core.local_size()


def cross_rank() -> int:
    """Position of this host among those with this local rank. ValueError before `init`."""
    _check_initialized()
    return _core.cross_rank()


def cross_size() -> int:
    """Number of hosts with this local rank. ValueError before `init`."""
    _check_initialized()
    return _core.cross_size()


def is_homogeneous() -> bool:
    """Whether all hosts run equally many processes of the job. ValueError before `init`."""
    _check_initialized()
    return _homogeneous


def engine() -> str:
    """Name of the engine that moves tensors in this job. ValueError before `init`."""
    _check_initialized()
    return _core.engine()


def stats() -> dict[str, int | float]:
    """Counters of this process since `init`: rounds, units, tensors, data_bytes, wait_ns, ...

    Raises:
        ValueError: Before `init`.
    """
    _check_initialized()
    return _core.stats()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what the runtime does from now on, for chrome://tracing or Perfetto.

    Args:
        file_path: JSON file to write on this rank.
        mark_cycles: Mark the rounds of negotiation too.

    Raises:
        ValueError: Before `init`.
    """
    _check_initialized()
    _core.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the recording and close its file. ValueError before `init`."""
    _check_initialized()
    _core.stop_timeline()


def _begin(provider: Provider | None) -> None:
    global _homogeneous
    with _lock:
        if _core.is_initialized():
            return
        _homogeneous = startup.start(provider)
        global_process_set.ranks = list(range(_core.size()))
        _shut_down_at_exit()
        observers = [method() for method in _observers]
        _observers[:] = [m for m, o in zip(_observers, observers, strict=True) if o is not None]
    for observer in observers:
        if observer is not None:
            observer()
    if _core.rank() == 0:
        _warn_about_horovods_variables()


def _warn_about_horovods_variables() -> None:
    honoured = {alias for _, alias, *_ in _core.env_table()} | {"HOROVOD_STALL_CHECK_DISABLE"}
    text = warning_about(horovod_variables(), honoured)
    if text is not None:
        warnings.warn(text, stacklevel=4)


def _check_initialized() -> None:
    if not _core.is_initialized():
        raise ValueError("aiacc has not been initialized; use hvd.init().")


def _shut_down_at_exit() -> None:
    global _atexit_pid
    if _atexit_pid != os.getpid():
        _atexit_pid = os.getpid()
        atexit.register(_at_exit, _atexit_pid)


def _at_exit(pid: int) -> None:
    if os.getpid() == pid:  # a child of a fork has none of the threads to end
        shutdown()
