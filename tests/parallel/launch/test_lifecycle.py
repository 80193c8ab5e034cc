"""Start, idleness and end of the runtime."""

import atexit
import json
import multiprocessing
import signal
import sys
import threading
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import aiacc.array as hvd
from aiacc import BootstrapError, ShutdownError, _core
from tests.support import footprint
from tests.support.jobs import on_ranks
from tests.support.programs import run_program
from tests.support.ranks import rank_environment


def _open_things():
    """Descriptors by kind, shared memory by name and by mapping of this process."""
    descriptors = [what.partition(":")[0] for what in footprint.descriptors().values()]
    files = sorted(path.name for path in Path("/dev/shm").glob("*aiacc*"))
    mapped = Path("/proc/self/maps").read_text().count("memfd:aiacc")
    return sorted(descriptors), files, mapped


@pytest.mark.alone
@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.nightly)])
@on_ranks(2, 3, starts=False)
def test_initialise_and_shut_down_many_times_leaves_nothing(times):
    threads = footprint.running_threads()
    hvd.init()  # what stays for good, such as the lock of atexit, is there after the first
    hvd.shutdown()
    before = _open_things()
    for number in range(times):
        hvd.init()
        hvd.init()
        assert _core.is_initialized()
        total = hvd.allreduce(np.full(3, number), op=hvd.Sum)
        assert total.tolist() == [number * hvd.size()] * 3
        if number % 2:
            hvd.barrier()
        hvd.shutdown()  # what all ranks have agreed on is done, however fast the first one leaves
        hvd.shutdown()
    assert _open_things() == before
    assert footprint.threads_after_join(threads) == threads


@on_ranks(2)
def test_idle_ranks_exchange_no_rounds():
    hvd.allreduce(np.ones(10), name="warm")
    hvd.barrier()
    rounds = [_core.stats()["rounds"]]
    # The last round that the barrier causes has no event, and on a busy machine it may come late.
    while len(rounds) < 10 and rounds[-1:] != rounds[-2:-1]:
        threading.Event().wait(1.0)
        rounds.append(_core.stats()["rounds"])
    hvd.barrier()
    assert rounds[-1] == rounds[-2] > 0, rounds


@on_ranks(2)
def test_timelines_have_horovods_phases(tmp_path):
    for marks_cycles in (True, False):
        path = tmp_path / f"{marks_cycles}.{hvd.rank()}.json"
        hvd.start_timeline(path, mark_cycles=marks_cycles)
        hvd.allreduce(np.ones(3), name="x")
        hvd.stop_timeline()
        hvd.stop_timeline()
        if hvd.rank() > 0:
            assert not path.exists()
            path = path.with_suffix(f".rank{hvd.rank()}.json")
        first, *events = json.loads(path.read_text())
        assert first["args"]["start_time_since_epoch_in_micros"] > 0
        of_x = {event["cat"] for event in events if event["name"] == "allreduce.x"}
        assert of_x == {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"}
        assert any(event.get("cat") == "CYCLE_START" for event in events) == marks_cycles


_NO_SHUTDOWN = """
import numpy, aiacc.array as hvd
assert "libmpi" not in open("/proc/self/maps").read()
hvd.init()
hvd.allreduce(numpy.ones(3))
print("done", flush=True)
"""


def test_process_that_forgets_shutdown_ends_cleanly():
    ended = run_program([sys.executable, "-c", _NO_SHUTDOWN], env=rank_environment({}))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def _use_in_a_child(answers):
    answers.send((hvd.is_initialized(), hvd.rank(), hvd.size()))
    calls = [hvd.barrier, hvd.stop_timeline, lambda: hvd.allreduce(np.ones(3), name="same")]
    for call in calls:
        with pytest.raises(ValueError, match="was forked from rank"):
            call()
    assert atexit._ncallbacks() > 0
    atexit._run_exitfuncs()  # what sys.exit would run; must not touch the parent's runtime
    hvd.shutdown()
    answers.send(hvd.is_initialized())


@on_ranks(2)
def test_forked_child_knows_its_rank_and_leaves_the_job_alone():
    hvd.allreduce(np.ones(3), name="same")
    answers, questions = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_use_in_a_child, args=(questions,))
    worker.start()
    assert answers.recv() == (True, hvd.rank(), hvd.size())
    assert answers.recv() is False
    worker.join()
    assert worker.exitcode == 0
    assert hvd.allreduce(np.ones(3), name="same", op=hvd.Sum).tolist() == [2.0] * 3


@on_ranks(2)
def test_a_signal_reaches_python_during_a_wait():
    mine = np.ones(4)
    if hvd.rank() == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        handle = hvd.allreduce_async_(mine, name="lonely")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        assert not hvd.poll(handle)
    # The job goes on, and so does the operation that was waited for.
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="next").tolist() == [2, 2]
    if hvd.rank() == 1:
        handle = hvd.allreduce_async_(mine, name="lonely")
    assert hvd.synchronize(handle).tolist() == [1] * 4


@on_ranks(2, starts=False)
def test_a_handler_of_a_signal_may_call_shutdown_inside_of_init_and_of_another():
    def interrupt(*_):
        signal.raise_signal(signal.SIGUSR1)

    def shut_down(*_):
        with pytest.raises(BootstrapError, match="in a handler of a signal"):
            hvd.init()
        hvd.shutdown()

    leaves = (lambda *_: (hvd.shutdown(), sys.exit(9))), SystemExit
    for handler, error in (leaves, (shut_down, ShutdownError)):
        signal.signal(signal.SIGUSR1, handler)
        for early_or_late in ("fill_standard_descriptors", "siblings.be_rank"):
            with mock.patch(f"aiacc.startup.{early_or_late}", interrupt), pytest.raises(error):
                hvd.init()
            assert not hvd.is_initialized()
    hvd.init()
    with mock.patch("aiacc.basics.tuner.stop", interrupt):
        hvd.shutdown()
    assert not hvd.is_initialized()


@on_ranks(2)
def test_a_handle_of_an_earlier_life_names_nothing():
    handle = hvd.allreduce_async(np.ones(2), name="before")
    hvd.synchronize(handle)
    given = np.ones(2)
    lonely = hvd.allreduce_async_(given, name=f"of rank {hvd.rank()}")
    hvd.barrier()  # both are under way
    memory = weakref.ref(given)
    del given
    assert memory() is not None
    hvd.shutdown()
    assert memory() is None
    hvd.init()
    later = hvd.allreduce_async(np.ones(2), name="after")
    for wait, lost in ((_core.wait, handle), (hvd.synchronize, lonely)):
        with pytest.raises(ValueError, match="handle"):
            wait(lost)
    hvd.synchronize(later)


@on_ranks(2, starts=False, env={"AIACC_STALL_FILE": "/nowhere/stalls"})
def test_a_stall_file_that_cannot_be_written_is_named_at_the_start():
    with pytest.raises(ValueError, match=r"AIACC_STALL_FILE=.*nowhere/stalls.*correct or unset it"):
        hvd.init()
    assert not hvd.is_initialized()
