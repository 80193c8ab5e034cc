"""Process sets: static, added and removed, overlapping, with errors on the right ranks."""

import os

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from tests.support.jobs import on_ranks, over

#: Kinds of jobs.
WAYS = over("tcp", "hierarchical", "mpi")


@on_ranks(3, 4, ways=WAYS)
def test_sets_come_and_go_also_while_work_is_in_flight():
    assert aiacc.basics.engine() == os.environ["AIACC_ENGINE"]
    rank, size = hvd.rank(), hvd.size()
    even = add_process_set(range(0, size, 2))
    odd = add_process_set(ProcessSet(range(1, size, 2)))
    first = add_process_set([0])
    assert [s.process_set_id for s in (global_process_set, even, odd, first)] == [0, 1, 2, 3]
    mine = odd if rank % 2 else even
    assert mine.included()
    assert mine.rank() == rank // 2
    assert mine.size() == len(range(rank % 2, size, 2))
    for count in (1, 100_000):
        total = hvd.allreduce(np.full(count, rank, np.float32), op=hvd.Sum, process_set=mine)
        assert np.all(total == sum(range(rank % 2, size, 2)))
    gathered = hvd.allgather(np.full((rank, 2), rank), process_set=mine)
    assert gathered.shape == (sum(range(rank % 2, size, 2)), 2)
    root = size - 1 if (size - 1) % 2 == rank % 2 else size - 2
    assert hvd.broadcast(np.array([rank]), root, process_set=mine)[0] == root
    hvd.barrier(process_set=mine)
    if rank == 0:
        hvd.barrier(process_set=first)
    else:
        with pytest.raises(ValueError, match=f"rank {rank}.*member"):
            hvd.barrier(process_set=first)
        with pytest.raises(ValueError, match="included"):
            first.rank()
    assert remove_process_set(even)
    assert even.process_set_id is None
    assert even.size() is None
    assert not remove_process_set(even)
    assert not remove_process_set(global_process_set)
    with pytest.raises(ValueError, match="not registered"):
        hvd.barrier(process_set=even)
    add_process_set(even)
    assert even.process_set_id not in (None, 1)
    hvd.shutdown()
    assert (even.process_set_id, odd.process_set_id) == (None, None)
    hvd.init()
    _change_sets_while_work_is_in_flight()


def _change_sets_while_work_is_in_flight():
    rank, size = hvd.rank(), hvd.size()
    lasting = add_process_set([0, size - 1])
    for _ in range(5):
        busy = [
            (hvd.allreduce_async(np.full(100_000, rank, np.float32), name=f"{i}", op=hvd.Sum), size)
            for i in range(4)
        ]
        if lasting.included():
            busy.append((hvd.allgather_async(np.full(3, rank), process_set=lasting), None))
        passing = add_process_set([0, 1])
        done, alone = None, None
        if passing.included():
            done = hvd.alltoall_async(np.full(4, rank), process_set=passing)
        if rank == 0:
            alone = hvd.allreduce_async(np.ones(3), name="alone", process_set=passing)
        # What all members have submitted is done; what some have not fails.
        assert remove_process_set(passing)
        if done is not None:
            assert hvd.synchronize(done).tolist() == [0, 0, 1, 1]
        if alone is not None:
            with pytest.raises(aiacc.MismatchError, match="removed before all its members"):
                hvd.synchronize(alone)
        for handle, ranks in reversed(busy):
            result = hvd.synchronize(handle)
            if ranks is None:
                assert result.tolist() == [0] * 3 + [size - 1] * 3
            else:
                assert np.all(result == sum(range(ranks)))
    hvd.barrier()  # of whoever is not in the last set, before it leaves


@on_ranks(3)
def test_mistakes_are_errors_on_every_rank_and_not_fatal():
    everyone = list(range(hvd.size()))
    added = add_process_set([0])
    for ranks in ([0], everyone, [], [0, hvd.size()], [-1, 0], [1, 1]):
        with pytest.raises(ValueError, match="ranks"):
            add_process_set(ranks)
    with pytest.raises(ValueError, match="registered already"):
        add_process_set(added)
    with pytest.raises(aiacc.MismatchError, match="process set"):
        add_process_set([0, 1] if hvd.rank() == 0 else [1, 2])
    # One adds, the other one removes.
    change, argument = (add_process_set, [1]) if hvd.rank() == 0 else (remove_process_set, added)
    with pytest.raises(aiacc.MismatchError, match="add_process_set"):
        change(argument)
    total = hvd.allreduce(np.ones(2), name="afterwards", op=hvd.Sum)
    np.testing.assert_array_equal(total, np.full(2, hvd.size()))
    hvd.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        add_process_set([0])
    assert not remove_process_set(added)


@on_ranks(3, starts=False)
def test_sets_given_to_init():
    sets = [ProcessSet([0, 1]), ProcessSet([1])]
    for _ in range(3):
        aiacc.init(process_sets=sets)
        assert [s.process_set_id for s in sets] == [1, 2]
        rank = hvd.rank()
        if rank < 2:
            assert hvd.allreduce(np.array([rank]), op=hvd.Sum, process_set=sets[0])[0] == 1
        hvd.barrier()
        hvd.shutdown()
        assert [s.process_set_id for s in sets] == [None, None]
    with pytest.raises(ValueError, match="process set 1"):
        aiacc.init(process_sets=[ProcessSet([0, 1]), ProcessSet([1, 0])])
    assert not aiacc.is_initialized()
    with pytest.raises(ValueError, match="dynamic"):
        aiacc.init(process_sets="static")
    aiacc.init(comm=list(range(3)), process_sets="Dynamic")
    assert add_process_set([2]).process_set_id == 1
    hvd.shutdown()
    with pytest.raises(ValueError, match="comm"):
        aiacc.init(comm=[0, 1])
    assert not aiacc.is_initialized()
