"""Ranks whose socket calls move few bytes, or fail as if interrupted or too early."""

import ctypes
import os
import shutil
import signal

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from bench.network import native
from tests.support.jobs import in_job, until_it_fails
from tests.support.needed import needs
from tests.support.ranks import run_ranks
from tests.support.sizes import TWO_AND_THREE

_needed = needs("" if shutil.which("cc") else "no cc on PATH")


def _cut_calls() -> int:
    calls = ctypes.CDLL(None).short_io_calls
    calls.restype = ctypes.c_long
    return calls()


def _reduce_and_leave(engine):
    for generation in range(8):
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        handles = []
        for number, elements in enumerate((1, 300, 50_000, 400_000)):
            tensor = np.arange(elements, dtype=np.float32) % 1021 + rank + generation
            handles.append(hvd.allreduce_async(tensor, name=f"t{number}", op=hvd.Sum))
        for elements, handle in zip((1, 300, 50_000, 400_000), handles, strict=True):
            total = (np.arange(elements, dtype=np.float32) % 1021 + generation) * size
            assert np.array_equal(hvd.synchronize(handle), total + size * (size - 1) // 2)
        gathered = hvd.allgather(np.full((rank + 1, 1000), rank))
        assert gathered.sum() == 1000 * sum(other * (other + 1) for other in range(size))
        parts = hvd.alltoall(np.repeat(np.arange(size), 3000) * 10 + rank)
        assert np.array_equal(parts, np.repeat(np.arange(size) + 10 * rank, 3000))
        hvd.shutdown()  # at once: what the others have not heard has to arrive nevertheless
    assert _cut_calls() > 100


@pytest.mark.parametrize("engine", ["tcp", "hierarchical"])
@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_ranks_get_the_right_numbers(engine, size):
    env = {"LD_PRELOAD": str(native.short_io()), "AIACC_ENGINE": engine, "AIACC_UNIT_BYTES": "64K"}
    run_ranks(size, _reduce_and_leave, engine, env=env)


@in_job
def _survive_a_death():
    hvd.barrier()
    if hvd.rank() == 2:
        hvd.allreduce(np.ones(1000), name="x")  # all have left the barrier
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(aiacc.PeerLostError, match="rank 2"):
        until_it_fails(lambda: hvd.allreduce(np.ones(1000), name="x"))


@pytest.mark.parametrize("seed", range(6))
def test_all_survivors_name_the_rank_that_died(seed):
    env = {"LD_PRELOAD": str(native.short_io()), "SHORT_IO_SEED": str(seed)}
    run_ranks(5, _survive_a_death, missing=[2], env=env)
