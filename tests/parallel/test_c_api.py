"""A front-end in C (tests/cpp/bindings/c_api_job*.c) in jobs that Python starts and ends."""

import ctypes
import os
import signal
import threading

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc.process_sets import add_process_set, remove_process_set
from tests.support.gpu import fake_gpu
from tests.support.jobs import TWO_AND_THREE, on_ranks, over
from tests.support.programs import missing
from tests.support.ranks import ROOT

LIBRARY = ROOT / "build/dev/tests/cpp/libbindings_c_api_job.so"
PEER_LOST = 5
SHUTDOWN = 7


@pytest.fixture(autouse=True)
def _built():
    for library in (LIBRARY, fake_gpu.LIBRARY):
        if not library.exists():
            missing(f"{library.relative_to(ROOT)} is not built; run make test-cpp")


def _run(function, *arguments):
    """Call one of the library, which needs `import aiacc`: that has loaded the core."""
    library = ctypes.CDLL(str(LIBRARY))
    library.job_failure.restype = ctypes.c_char_p
    if getattr(library, f"job_{function}")(*arguments) != 0:
        raise AssertionError(f"{function}: {library.job_failure().decode()}")


@on_ranks(2)
def test_c_knows_what_python_has_started_meets_it_by_name_and_works_alone():
    one = add_process_set([1])
    _run("state", hvd.rank(), hvd.size(), one.process_set_id)
    _run("wait", b"from.c")
    if hvd.rank() == 0:
        _run("wait", b"allreduce.mixed")
    else:
        value = np.array(2, np.float32)
        assert hvd.allreduce(value, name="mixed", postscale_factor=10) == 15
    functions = "chain gather all_to_all others wait_once refusals failures child wait_in_callback"
    for function in functions.split():
        _run(function)
        assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="afterwards") == [2.0], function


@on_ranks(*TWO_AND_THREE, ways=over("tcp", "mpi"))
def test_groups_and_process_sets():
    outsider = 1
    ends = add_process_set([rank for rank in range(hvd.size()) if rank != outsider])
    _run("gather_group", 0)
    _run("failures")
    _run("adasum", 0)
    if hvd.size() == 3 and hvd.rank() != outsider:
        _run("adasum", ends.process_set_id)
    _run("process_set", ends.process_set_id, outsider)
    number = ends.process_set_id
    hvd.barrier()
    remove_process_set(ends)
    _run("removed_set", number)


@on_ranks(2, ways=over("tcp", "mpi"))
def test_c_and_python_submit_at_once():
    turns = 5
    sums = []

    def submit_from_python():
        for turn in range(turns):
            handles = [
                hvd.allreduce_async(np.full(7, hvd.rank() + k), op=hvd.Sum, name=f"p.{turn}.{k}")
                for k in range(20)
            ]
            sums.append([hvd.synchronize(handle).tolist() for handle in handles])

    thread = threading.Thread(target=submit_from_python)
    thread.start()
    for turn in range(turns):
        _run("sums", turn)
    thread.join()
    assert sums == [[[1 + 2 * k] * 7 for k in range(20)]] * turns


@on_ranks(2, env={"LD_LIBRARY_PATH": str(fake_gpu.LIBRARY.parent)})
def test_tensors_on_a_gpu():
    fake = fake_gpu.driver()
    ctypes.CDLL(str(LIBRARY)).job_use_device(0, fake.fake_drain)
    calls = [("sums", 0), ("gather",), ("gather_group", 0), ("all_to_all",), ("failures",)]
    for function, *arguments in calls:
        _run(function, *arguments)
        hvd.barrier()
        assert fake.fake_misuses() == 0, function


@on_ranks(2)
def test_shutdown_tells_who_waits():
    rank = hvd.rank()
    if rank == 0:
        _run("leave_pending")
    hvd.barrier()  # they are under way
    aiacc.shutdown()
    if rank == 0:
        _run("pending_failed", SHUTDOWN, b"has shut down")
        _run("is_over", SHUTDOWN)
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="again") == [2.0]


@on_ranks(2)
def test_a_wait_that_begins_in_a_shutdown_lasts_until_memory_is_free():
    if hvd.rank() == 0:
        _run("hold_shutdown")
        aiacc.shutdown()
        _run("was_held")
    else:
        with pytest.raises(aiacc.ShutdownError):
            hvd.barrier()
        aiacc.shutdown()


@on_ranks(2, missing={1})
def test_a_lost_rank_reaches_the_callbacks_once():
    processes = hvd.allgather_object(os.getpid())
    if hvd.rank() == 1:
        signal.pause()
    _run("leave_pending")
    os.kill(processes[1], signal.SIGKILL)
    _run("pending_failed", PEER_LOST, b"rank 1")
    _run("is_over", PEER_LOST)
    aiacc.shutdown()
