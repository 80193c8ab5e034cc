"""Sockets of ranks: lanes are flows of equal shares; calls that move little change nothing."""

import ctypes
import os
import shutil
import signal
import socket
import struct

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from bench.bed import native
from tests.support import footprint
from tests.support.jobs import TWO_AND_THREE, in_job, until_it_fails
from tests.support.programs import needs
from tests.support.ranks import run_ranks

_needed = needs("" if shutil.which("cc") else "no cc on PATH")


def _cut_calls() -> int:
    calls = ctypes.CDLL(None).short_io_calls
    calls.restype = ctypes.c_long
    return calls()


def _reduce_and_leave():
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
    run_ranks(size, _reduce_and_leave, env=env)


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


# --- K lanes of engine tcp are K TCP flows, each with its share of one large tensor

_SO_MAX_PACING_RATE = 47
#: Where struct tcp_info of linux/tcp.h has the bytes that have come.
_BYTES_RECEIVED = 128
_UNLIMITED = 2**64 - 1
_MIB = 1 << 20


def _own_connections() -> list[tuple[int, int]]:
    """Pacing limit and bytes received of every TCP connection of this process."""
    found = []
    for held in footprint.tcp_sockets():
        pace = held.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8)
        info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        received = struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
        found.append((struct.unpack("=Q", pace)[0], received))
    return found


@in_job
def _reduce_one_large_tensor() -> list[tuple[int, int]]:
    tensor = np.ones(12 * _MIB // 4, np.float32)
    assert (hvd.allreduce(tensor, op=hvd.Sum) == hvd.size()).all()
    hvd.barrier()
    found = _own_connections()
    hvd.barrier()
    return found


@pytest.mark.parametrize("lanes", [1, 3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_large_tensor_uses_all_lanes_alike_and_each_is_paced(lanes, ranks):
    pace = 64 * _MIB
    env = {"AIACC_ENGINE": "tcp", "AIACC_LANES": str(lanes), "AIACC_TEST_PACE_BYTES": str(pace)}
    share = 12 * _MIB * 2 * (ranks - 1) // ranks // lanes
    for connections in run_ranks(ranks, _reduce_one_large_tensor, env=env):
        carrying = [found for found in connections if found[1] > share // 2]
        assert len(carrying) == lanes
        assert all(share <= received < share + 4096 for _, received in carrying)
        assert {limit for limit, _ in carrying} == {pace}
        paces = [limit for limit, _ in connections]
        # The control mesh is not paced; every lane has a connection to each neighbour.
        assert paces.count(pace) >= 2 * lanes
        assert set(paces) == {pace, _UNLIMITED}


def test_nothing_is_paced_unless_asked_for():
    for connections in run_ranks(2, _reduce_one_large_tensor, env={"AIACC_ENGINE": "tcp"}):
        assert connections
        assert {limit for limit, _ in connections} == {_UNLIMITED}
