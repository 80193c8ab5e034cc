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
from tests.support.jobs import on_ranks, over
from tests.support.needed import missing
from tests.support.ranks import ROOT
from tests.support.sizes import TWO_AND_THREE

LIBRARY = ROOT / "build/dev/tests/cpp/libbindings_c_api_job.so"
PEER_LOST = 5
SHUTDOWN = 7


@pytest.fixture(autouse=True)
def _built():
    for library in (LIBRARY, fake_gpu.LIBRARY):
        if not library.exists():
            missing(f"{library.relative_to(ROOT)} is not built; run make test-cpp")


class _Frontend:
    """The functions of the library. Needs `import aiacc`, which has loaded the core."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.job_failure.restype = ctypes.c_char_p

    def run(self, function, *arguments):
        if getattr(self.library, f"job_{function}")(*arguments) != 0:
            raise AssertionError(self.library.job_failure().decode())


@on_ranks(2)
def test_c_knows_what_python_has_started():
    one = add_process_set([1])
    _Frontend().run("state", hvd.rank(), hvd.size(), one.process_set_id)
    hvd.barrier()


@pytest.mark.parametrize(
    "function",
    [
        *("chain", "gather", "all_to_all", "others", "wait_once", "refusals", "failures"),
        *("child", "wait_in_callback"),
    ],
)
@on_ranks(2)
def test_c_alone(function):
    _Frontend().run(function)
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="afterwards") == [2.0]


@on_ranks(*TWO_AND_THREE, ways=over("tcp", "mpi"))
def test_groups_and_process_sets():
    frontend = _Frontend()
    outsider = 1
    ends = add_process_set([rank for rank in range(hvd.size()) if rank != outsider])
    frontend.run("gather_group", 0)
    frontend.run("gather_group_failures")
    frontend.run("adasum", 0)
    if hvd.size() == 3 and hvd.rank() != outsider:
        frontend.run("adasum", ends.process_set_id)
    frontend.run("process_set", ends.process_set_id, outsider)
    number = ends.process_set_id
    hvd.barrier()
    remove_process_set(ends)
    frontend.run("removed_set", number)


@on_ranks(2, ways=over("tcp", "mpi"))
def test_c_and_python_submit_at_once():
    frontend = _Frontend()
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
        frontend.run("sums", turn)
    thread.join()
    assert sums == [[[1 + 2 * k] * 7 for k in range(20)]] * turns


@pytest.mark.parametrize(
    "call", [("sums", 0), ("gather",), ("gather_group", 0), ("all_to_all",), ("failures",)]
)
@on_ranks(2, env={"LD_LIBRARY_PATH": str(fake_gpu.LIBRARY.parent)})
def test_tensors_on_a_gpu(call):
    frontend, fake = _Frontend(), fake_gpu.driver()
    frontend.library.job_use_device(0, fake.fake_drain)
    frontend.run(*call)
    hvd.barrier()
    assert fake.fake_misuses() == 0


@on_ranks(2)
def test_c_meets_python_by_name():
    _Frontend().run("wait", b"from.c")
    if hvd.rank() == 0:
        _Frontend().run("wait", b"allreduce.mixed")
    else:
        value = np.array(2, np.float32)
        assert hvd.allreduce(value, name="mixed", postscale_factor=10) == 15


@on_ranks(2)
def test_shutdown_tells_who_waits():
    rank = hvd.rank()
    frontend = _Frontend()
    hvd.barrier()
    if rank == 0:
        frontend.run("leave_pending")
    aiacc.shutdown()
    if rank == 0:
        frontend.run("pending_failed", SHUTDOWN, b"has shut down")
        frontend.run("is_over", SHUTDOWN)
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="again") == [2.0]


@on_ranks(2)
def test_a_wait_that_begins_in_a_shutdown_lasts_until_memory_is_free():
    if hvd.rank() == 0:
        frontend = _Frontend()
        frontend.run("hold_shutdown")
        aiacc.shutdown()
        frontend.run("was_held")
    else:
        with pytest.raises(aiacc.ShutdownError):
            hvd.barrier()
        aiacc.shutdown()


@on_ranks(2, missing={1})
def test_a_lost_rank_reaches_the_callbacks_once():
    rank = hvd.rank()
    frontend = _Frontend()
    hvd.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    frontend.run("leave_pending")
    frontend.run("pending_failed", PEER_LOST, b"rank 1")
    frontend.run("is_over", PEER_LOST)
    aiacc.shutdown()
