"""Start and end of the runtime, and who this process is in the job."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aiacc import _core, arguments, script_end, siblings, startup
from aiacc.autotune import tuner
from aiacc.bootstrap import Provider, seat
from aiacc.bootstrap.providers import pmi
from aiacc.collectives import handles
from aiacc.config import as_set, horovod_variables
from aiacc.exceptions import AiaccError, BootstrapError, ShutdownError
from aiacc.horovod_variables import warning_about
from aiacc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    has_company,
    unregister_all,
)

#: Held by `init` and `end`; a handler of a signal may run in the middle, and call either.
_lock = threading.RLock()
#: Which of them the thread with the lock is in, and whether a handler has called `end` there.
_inside = ""
_end_asked = False
_observers: list[weakref.WeakMethod[Callable[[], None]]] = []
_before_end: list[Callable[[], None]] = []
_atexit_pid = 0
_homogeneous = False
_host_of: tuple[int, ...] = ()
#: AIACC_PROFILE, as the job began with it.
_profile = ""
#: On which every rank codes, as if it were a host.
_FLAT_ENGINES = ("tcp", "mpi")


def init(
    comm: Sequence[int] | object | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Find the other ranks and start the runtime. Once it is started this does nothing more.

    After a fatal error call `shutdown` first.

    Collective: every rank, equally often.
    Blocks: until all ranks have come, at most AIACC_CONNECT_TIMEOUT_S.

    Args:
        comm: None or [], a list of all ranks, or an MPI communicator of all ranks.
        process_sets: Process sets to register, the same on every rank; or "dynamic", which is how
            it always is: they can be added at any time.

    Raises:
        TypeError: ``process_sets`` of something else.
        ValueError: A communicator or list of some ranks only, process sets that are equal or not
            valid, or a variable of the environment that does not parse; process sets that the job
            has not, once it runs.
        BootstrapError: The ranks could not find each other, or do not fit together.
        CollectiveError: The ranks could not connect. Nothing is left open.
    """
    arguments.check({"process_sets": process_sets})
    sets = () if process_sets is None or isinstance(process_sets, str) else process_sets
    _begin(None, comm, sets)


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


def before_shutdown(function: Callable[[], None]) -> None:
    """Call ``function``, which raises nothing, before every orderly end of the runtime.

    It may wait for operations that every rank has started, or is about to.
    """
    _before_end.append(function)


def shutdown() -> None:
    """End the runtime; outstanding operations fail with `ShutdownError`.

    Other ranks learn of it. Idempotent; `init` may be called again. A handler of a signal that
    interrupts `init` or another `shutdown` may call it: the former ends by ShutdownError as soon as
    it can, unless the handler raises, and this returns before.

    Collective: no.
    Blocks: until the threads of the runtime have ended, which takes milliseconds; after a step of
    schedule "decoupled" until every rank has ended it.
    """
    with _lock:
        is_inside = bool(_inside)
    if not is_inside:
        _finish()
    end("")


def end(how: str) -> None:
    """`shutdown` at once; ``how`` follows "rank N" in what the other ranks are told.

    What they are about to do with this one fails.
    """
    global _inside, _end_asked
    with _lock:
        if _inside:
            _end_asked = True
            return
        _inside = "shutdown"
        try:
            _end(how)
        finally:
            _inside = ""


def _end(how: str = "") -> None:
    tuner.stop()
    _core.shutdown(how)
    handles.release_memory()
    seat.release_all()
    siblings.be_no_rank()
    unregister_all()


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


def hosts_of(ranks: Iterable[int]) -> list[int]:
    """Numbers of the hosts that these ranks of the job are on. ValueError before `init`."""
    _check_initialized()
    return [_host_of[rank] for rank in ranks]


def codecs_code(process_set: ProcessSet) -> bool:
    """Whether this rank has others in ``process_set`` for which codecs code what it sends.

    They are on other hosts than its own, or the engine is flat.
    """
    if not has_company(process_set):
        return False
    return engine_is_flat() or len(set(hosts_of(process_set.ranks or ()))) > 1


def engine_is_flat() -> bool:
    """Whether every rank codes, as if it were a host. ValueError before `init`."""
    return engine() in _FLAT_ENGINES


def engine() -> str:
    """Name of the engine that moves tensors in this job. ValueError before `init`."""
    _check_initialized()
    return _core.engine()


def stats() -> dict[str, int | float]:
    """Counters of this process since `init`, and how many lanes are in use now.

    rounds, control_bytes, tensors, units, data_bytes, wait_ns; lanes.

    Raises:
        ValueError: Before `init`.
    """
    _check_initialized()
    return _core.stats()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what the runtime does from now on, for chrome://tracing or Perfetto.

    Args:
        file_path: JSON file of rank 0. The others write beside it, "t.rank3.json" for "t.json",
            or where "{rank}" in the path stands for their number. `aiaccrun --merge-timelines`
            makes one of them. A rank that the system has no thread for warns and goes on without.
        mark_cycles: Mark the rounds of negotiation too.

    Raises:
        TypeError: ``file_path`` is no path, or ``mark_cycles`` no bool.
        ValueError: Before `init`, or the file cannot be written.
    """
    _check_initialized()
    arguments.check(locals())
    _core.start_timeline(os.fsencode(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the recording and close its file. ValueError before `init`."""
    _check_initialized()
    _core.stop_timeline()


def _begin(
    provider: Provider | None,
    comm: Sequence[int] | object | None = None,
    process_sets: Sequence[ProcessSet] = (),
) -> None:
    global _homogeneous, _host_of, _profile, _inside, _end_asked
    with _lock:
        if _inside:
            raise BootstrapError(
                f"[bootstrap] init() in a handler of a signal that interrupts {_inside}() "
                "(expected a call outside of it); let the handler set a flag, and call init() "
                "where the script sees that"
            )
        if _core.is_initialized():
            _check_same(comm, process_sets)
            return
        _inside, _end_asked = "init", False
        try:
            plan = startup.start(provider)
            _homogeneous, _host_of = plan.homogeneous, plan.host_of
            _profile = str(_core.config()["profile"])
            global_process_set.ranks = list(range(_core.size()))
            _check_comm(comm)
            for process_set in process_sets:
                add_process_set(process_set)
            _shut_down_at_exit()
            _check_not_ended()
        except BaseException as error:
            _end()
            if isinstance(error, AiaccError | ValueError):
                _name_as_set(error)
            raise
        finally:
            _inside = ""
        observers = [method() for method in _observers]
        _observers[:] = [m for m, o in zip(_observers, observers, strict=True) if o is not None]
    for observer in observers:
        if observer is not None:
            observer()
    if _core.rank() == 0:
        _warn_about_horovods_variables()


def _name_as_set(error: Exception) -> None:
    """Let an error call the variables of the environment as the user does."""
    aliases = {name: alias for name, alias, *_ in _core.env_table()}
    error.args = tuple(
        as_set(part, aliases) if isinstance(part, str) else part for part in error.args
    )


def _check_not_ended() -> None:
    """Raise ShutdownError if a handler of a signal has called `end` inside of this `init`."""
    if _end_asked:
        raise ShutdownError(
            f"[core] rank {_core.rank()}: a handler of a signal called shutdown() inside of init() "
            "(expected a job that goes on); end the script, or call init() again"
        )


def _warn_about_horovods_variables() -> None:
    honoured = {alias for _, alias, *_ in _core.env_table()} | {"HOROVOD_STALL_CHECK_DISABLE"}
    text = warning_about(horovod_variables(), honoured)
    if text is not None:
        warnings.warn(text, stacklevel=4)


def _check_comm(comm: Sequence[int] | object | None) -> None:
    """Raise ValueError unless ``comm`` stands for all ranks of the job."""
    if comm is None or (isinstance(comm, list) and not comm):  # as Horovod means them
        return
    everyone = list(range(_core.size()))
    size = getattr(comm, "Get_size", None)
    if size is not None:
        fits = size() == len(everyone)
    else:
        fits = isinstance(comm, Sequence) and list(comm) == everyone
    if not fits:
        raise ValueError(
            f"comm={comm!r:.100} on rank {_core.rank()} (expected None, or all {len(everyone)} "
            "ranks, [0, 1, ...]); start the job with exactly the ranks that it should have, or use "
            "process sets for parts of them"
        )


def _check_same(comm: Sequence[int] | object | None, process_sets: Sequence[ProcessSet]) -> None:
    """Raise ValueError if `init` of a running job asks for another one, which it will not get."""
    _check_comm(comm)
    for process_set in process_sets:
        if getattr(process_set, "process_set_id", None) is None:
            raise ValueError(
                f"init(process_sets=[{process_set}]) on rank {_core.rank()} of a job that runs "
                "already (expected sets that it has); use hvd.add_process_set on every rank"
            )


def _check_initialized() -> None:
    if not _core.is_initialized():
        raise ValueError("aiacc has not been initialized; use hvd.init().")


def _shut_down_at_exit() -> None:
    global _atexit_pid
    if _atexit_pid != os.getpid():
        _atexit_pid = os.getpid()
        atexit.register(_at_exit, _atexit_pid)


def _at_exit(pid: int) -> None:
    if os.getpid() != pid:  # a child of a fork has none of the threads to end
        return
    if _core.is_initialized() and script_end.uncaught() is not None:
        # mpirun shall see that this rank has died, and end the others, whatever they do. An end in
        # order would keep it from that, and wait for them.
        _core.mpi_leave_unfinished()
        pmi.leave_unfinished()
    if script_end.uncaught() is None:
        _finish()
    end(script_end.goodbye())


def _finish() -> None:
    if _core.is_initialized():
        for function in _before_end:
            function()
        _tell_of_the_unused()


def _tell_of_the_unused() -> None:
    """Say on rank 0 which settings of the job nothing has used."""
    texts = [tuner.unused()]
    if _profile and _core.rank() == 0:
        from aiacc.autotune import profile  # which imports this module

        texts.append(profile.unused(_profile))
    for text in filter(None, texts):
        sys.stderr.write(f"aiacc: {text}\n")


def get_include() -> str:
    """Folder to compile other front-ends with: it has ``aiacc/c_api.h``.

    They load ``libaiacc_core.so`` by this name after ``import aiacc``.
    """
    return str(Path(_core.__file__).parent / "include")
