"""K lanes of engine tcp are K TCP flows, each with its share of one large tensor."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest

import aiacc.array as hvd
from tests.support import footprint
from tests.support.jobs import in_job
from tests.support.ranks import run_ranks

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
    env = {
        "AIACC_ENGINE": "tcp",
        "AIACC_LANES": str(lanes),
        "AIACC_TEST_PACE_BYTES": str(pace),
    }
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
