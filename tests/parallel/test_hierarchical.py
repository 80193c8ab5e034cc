"""The `hierarchical` engine: ranks of one machine that a launcher has divided into hosts."""

from __future__ import annotations

import os

import numpy as np
import pytest

import aiacc.array as hvd
from aiacc import _core
from tests.support.ranks import run_ranks

#: Number of elements: of the express lane, of one unit, and of several units on all lanes.
COUNTS = (3, 50_001, 2_000_003)


def _start(hosts):
    """Initialise as rank number AIACC_RANK of a job whose rank r is on host ``hosts[r]``."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_ENGINE"] = "hierarchical"
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    hvd.init()
    assert _core.engine() == "hierarchical"
    assert hvd.local_size() == hosts.count(hosts[rank])


def _operations(hosts):
    _start(hosts)
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.uint8):
        for count in COUNTS:
            mine = np.full(count, rank + 1, dtype)
            assert np.all(hvd.allreduce(mine, op=hvd.Sum) == total)
            assert np.all(hvd.allreduce(mine, op=hvd.Max) == size)
            assert np.all(mine == rank + 1)
    handles = [
        hvd.allreduce_async(np.full(100_000, rank * i, np.float32), name=f"t{i}", op=hvd.Average)
        for i in range(20)
    ]
    for i, handle in enumerate(handles):
        np.testing.assert_allclose(hvd.synchronize(handle), i * (size - 1) / 2, rtol=1e-6)
    for root in range(size):
        assert np.all(hvd.broadcast(np.full(70_000, rank), root) == root)
    rows = hvd.allgather(np.full((rank, 20_000), rank))
    assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r)]
    pieces = hvd.alltoall(np.arange(size) + 10 * rank)
    assert pieces.tolist() == [10 * r + rank for r in range(size)]
    assert hvd.reducescatter(np.ones((size, 9_000), np.float32), op=hvd.Sum).tolist() == [
        [size] * 9_000
    ]
    others = hvd.add_process_set(list(range(1, size)))
    if rank > 0:
        mine = np.full(60_000, rank)
        assert np.all(hvd.allreduce(mine, op=hvd.Sum, process_set=others) == total - size)
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "aabc", "abba"])
def test_operations(hosts):
    run_ranks(len(hosts), _operations, hosts)


def _dies(hosts):
    _start(hosts)
    if hvd.rank() == 2:
        os._exit(7)
    with pytest.raises(hvd.CollectiveError, match="rank 2"):
        _reduce_for_ever()


def _reduce_for_ever():
    while True:
        hvd.allreduce(np.ones(500_000, np.float32), name="x")


def test_a_lost_rank_is_named_on_every_host():
    run_ranks(4, _dies, "aabb", missing=[2])
