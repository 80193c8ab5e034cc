"""A rank dies, freezes or has no memory: every other one gets the error, and may go on."""

import ctypes
import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc import _core
from aiacc.process_sets import add_process_set, remove_process_set
from tests.support.jobs import in_job, on_ranks, over, until_it_fails
from tests.support.ranks import run_ranks

#: Seconds after which a survivor that has heard nothing hangs. Detection itself takes less than 1
#: (death) or AIACC_PEER_TIMEOUT_S (freeze); the rest is for a machine that is busy.
PATIENCE_S = 30


def _reduce_until_it_fails():
    hvd.barrier()
    until_it_fails(lambda: hvd.allreduce(np.ones(1000), name="warm"))


@pytest.mark.parametrize("size", [2, 4, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_survivors_of_a_lost_rank_name_it(size, sent):
    options = {"missing": [size - 1], "timeout": PATIENCE_S, "env": {"AIACC_PEER_TIMEOUT_S": "1"}}
    run_ranks(size, _survive, sent, **options)


@in_job
def _survive(sent):
    victim = hvd.size() - 1
    hvd.allreduce(np.ones(1000), name="warm")
    if hvd.rank() == victim:
        hvd.barrier()
        os.kill(os.getpid(), sent)
        threading.Event().wait()  # not reached by a dead or frozen process
    with pytest.raises(aiacc.PeerLostError, match=f"rank {victim}") as first:
        _reduce_until_it_fails()
    # The first failure is latched: everything later fails in the same way.
    with pytest.raises(aiacc.PeerLostError) as later:
        hvd.allreduce(np.ones(3), name="later")
    assert str(later.value) == str(first.value)


@on_ranks(2, timeout=PATIENCE_S, env={"AIACC_PEER_TIMEOUT_S": "1"})
def test_a_rank_that_holds_the_lock_of_python_is_not_taken_for_frozen():
    hvd.barrier()
    if hvd.rank() == 0:
        ctypes.PyDLL(None).usleep(1_500_000)  # this keeps the lock, as computing in C may
    assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [2.0] * 3


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@on_ranks(
    3,
    missing=[2],
    timeout=PATIENCE_S,
    env={
        "AIACC_ENGINE": "tcp",  # which connects, and can be slow
        "AIACC_PEER_TIMEOUT_S": "1",
        "AIACC_LANES": "1",
        "AIACC_TEST_PACE_BYTES": "1000000",
    },
)
def test_a_lost_rank_ends_a_first_all_to_all_that_connects(sent):
    """Ranks 1 and 2 are in a slow unit of theirs, rank 0 is in the first all-to-all after it."""
    part = add_process_set([1, 2])
    handles = []
    if part.included():
        slow = np.ones(8 << 20, np.uint8)
        handles.append(hvd.allgather_async(slow, name="slow", process_set=part))
    hvd.allreduce(np.ones(3), name="agreed on after the slow one")
    handles.append(hvd.alltoall_async(np.arange(3), name="first"))

    def lose_it():
        hvd.allreduce(np.ones(3), name="agreed on after both")  # rank 2 may be the first to have it
        if hvd.rank() == 2:
            os.kill(os.getpid(), sent)
        hvd.synchronize(handles[-1])

    with pytest.raises(aiacc.PeerLostError, match="rank 2"):
        lose_it()


@on_ranks(2, missing=[1], timeout=PATIENCE_S, env={"AIACC_PEER_TIMEOUT_S": str(10 * PATIENCE_S)})
def test_a_worker_that_outlives_its_rank_does_not_hide_its_death(tmp_path):
    """A loader's worker, forked."""
    pid_file = tmp_path / "pid"
    hvd.allreduce(np.ones(3), name="warm")
    if hvd.rank() == 1:
        worker = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        worker.start()
        pid_file.write_text(str(worker.pid))
        hvd.barrier()  # the others have "warm"
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(aiacc.PeerLostError):
        until_it_fails(hvd.barrier)
    worker_pid = int(pid_file.read_text())
    os.kill(worker_pid, 0)  # is still there
    os.kill(worker_pid, signal.SIGKILL)


def _join_with_work_in_flight():
    handle = hvd.allreduce_async(np.ones(1000), name="in flight")
    hvd.join()
    hvd.synchronize(handle)


#: What the survivors are in when a rank dies.
MOMENTS = {
    "waiting for nothing else": hvd.barrier,
    "changing sets": lambda: remove_process_set(add_process_set([0, 2])),
    "joining": _join_with_work_in_flight,
}


@pytest.mark.parametrize("delay_s", [0, 0.003, pytest.param(0.02, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("moment", MOMENTS)
@on_ranks(3, timeout=PATIENCE_S, missing=[2])
def test_a_rank_that_dies_ends_what_needs_all_ranks(moment, delay_s):
    """It dies before the survivors' call, or by a timer at some moment of it."""
    victim = hvd.rank() == hvd.size() - 1
    if victim:
        hvd.barrier()
    if victim and delay_s == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if victim:
        signal.setitimer(signal.ITIMER_REAL, delay_s)  # nobody handles the signal: it kills
    with pytest.raises(aiacc.PeerLostError, match=f"rank {hvd.size() - 1}"):
        _meet_and_go_on(MOMENTS[moment], met=victim)


def _meet_and_go_on(call, met):
    """Who dies right after the barrier may do so before the others have left it."""
    if not met:
        hvd.barrier()
    until_it_fails(call)


@on_ranks(3, missing=[1], timeout=PATIENCE_S)
def test_survivors_shut_down_and_start_anew(port):
    if hvd.rank() == 1:
        hvd.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(aiacc.CollectiveError):
        _reduce_until_it_fails()
    assert hvd.is_initialized()
    hvd.shutdown()
    # The survivors of a job of three start anew as a job of two.
    rank = int(os.environ["AIACC_RANK"]) // 2
    os.environ.update(AIACC_RANK=str(rank), AIACC_SIZE="2", AIACC_ADDR=f"127.0.0.1:{port}")
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, 2)
    total = hvd.allreduce(np.full(4, rank + 1.0), name="x", op=hvd.Sum)
    assert total.tolist() == [3.0] * 4


@on_ranks(2, timeout=PATIENCE_S)
def test_outstanding_operation_fails_at_shutdown():
    hvd.barrier()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(4), name="never")
        hvd.shutdown()
        with pytest.raises(aiacc.ShutdownError):
            hvd.synchronize(handle)
    else:
        with pytest.raises(aiacc.ShutdownError):
            hvd.barrier()  # which rank 0 never enters
    hvd.shutdown()
    with pytest.raises(aiacc.CollectiveError, match="init"):
        hvd.allreduce(np.ones(4))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_during_init_is_named_long_before_the_deadline(victim):
    env, how = {"AIACC_CONNECT_TIMEOUT_S": "3600"}, {"missing": [victim], "timeout": PATIENCE_S}
    run_ranks(2, _dies_before_it_is_connected, victim, env=env, **how)


def _dies_before_it_is_connected(victim):
    if os.environ["AIACC_RANK"] == str(victim):
        # The ranks have found each other when the core is to connect them.
        _core.init = lambda **_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(aiacc.PeerLostError, match=f"rank {victim}"):
        hvd.init()
    assert not hvd.is_initialized()


@on_ranks(
    1, starts=False, timeout=PATIENCE_S, env={"AIACC_SIZE": "2", "AIACC_CONNECT_TIMEOUT_S": "1"}
)
def test_rank_that_never_comes_is_named():
    with pytest.raises(aiacc.CollectiveError, match="rank 1"):
        hvd.init()
    assert not hvd.is_initialized()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("AIACC_SIZE", "3", r"(?s)size (2.*size 3|3.*size 2)"),
        ("AIACC_UNIT_BYTES", "4096", "AIACC_UNIT_BYTES.*4096 on rank 1"),
        ("AIACC_GPU_ALGORITHM", "ring", "AIACC_GPU_ALGORITHM.*ring on rank 1"),
        ("AIACC_PEER_TIMEOUT_S", "7.5", "AIACC_PEER_TIMEOUT_S.*7.5 on rank 1"),
    ],
)
@on_ranks(2, starts=False, timeout=PATIENCE_S, env={"AIACC_CONNECT_TIMEOUT_S": "10"})
def test_different_settings_are_an_error_on_both_ranks(name, value, text):
    if os.environ["AIACC_RANK"] == "1":
        os.environ[name] = value
    with pytest.raises(aiacc.BootstrapError, match=text):
        hvd.init()


# --- a rank that has no memory for what the others give it

#: Zeros that nobody has touched take no memory of the machine.
_BYTES = 1 << 30


def _limit_memory():
    """This process may take no more than a third of that, whatever the machine has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    taken = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + _BYTES // 3, resource.RLIM_INFINITY))


def _gather():
    rows = np.zeros(_BYTES if hvd.rank() == 1 else 1, np.uint8)
    hvd.allgather(rows, name="rows")


def _send_to_each():
    count = _BYTES if hvd.rank() == 1 else 1
    hvd.alltoall(np.zeros(count + 1, np.uint8), splits=[count, 1], name="rows")


def _reduce_with_zeros_of_one_that_has_joined():
    if hvd.rank() == 0:
        hvd.join()
    else:
        hvd.allreduce_(np.zeros(_BYTES, np.uint8), name="rows", op=hvd.Sum)


@pytest.mark.parametrize(
    ("operation", "extra", "called"),
    [
        (_gather, 1, "allgather 'allgather.rows'"),
        (_send_to_each, 1, "alltoall 'alltoall.rows'"),
        (_reduce_with_zeros_of_one_that_has_joined, 0, "allreduce 'allreduce.rows'"),
    ],
)
@on_ranks(2, ways=over("tcp", "hierarchical"))
def test_every_rank_hears_which_tensor_was_too_large(operation, extra, called):
    if hvd.rank() == 0:
        _limit_memory()
    text = f" {_BYTES + extra} bytes of {called}"
    with pytest.raises(aiacc.CollectiveError, match=text) as caught:
        operation()
    assert type(caught.value).__name__ == "EngineError"
    assert "bad_alloc" not in str(caught.value)
