"""Sockets and threads that ranks have, too few descriptors, and strangers who want some."""

import contextlib
import os
import resource
import socket

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from tests.support import footprint
from tests.support.jobs import on_ranks
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.alone  # counts descriptors, threads and memory


def _exchange(process_set=hvd.global_process_set):
    size = process_set.size()
    rows = np.arange(size, dtype=np.float32)
    hvd.alltoall(rows, splits=np.ones(size, dtype=np.int32), process_set=process_set)


def _counts(lanes):
    before, threads_before = footprint.open_sockets(), footprint.running_threads()

    def opened():
        seat = hvd.rank() == 0  # which nobody else takes while the job lives
        return footprint.open_sockets() - before - seat

    def started(expected):
        return footprint.threads_after_join(threads_before + expected) - threads_before

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    hvd.barrier()
    assert opened() == footprint.sockets(rank, size, lanes, exchanged=False)
    expected = footprint.threads(lanes, sets=False)
    assert started(expected) == expected
    # Large and small ones, and several at a time, share their connections.
    handles = [
        hvd.alltoall_async(np.full((size * rows,), rank, np.float32), name=f"x{rows}")
        for rows in (1, 100_000, 2, 50_000)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    job = footprint.sockets(rank, size, lanes, exchanged=True)
    assert opened() == job
    members = hvd.add_process_set(list(range(1, size)))
    expected = job
    if members.included():
        set_of = (members.rank(), members.size(), lanes)
        # A set of one rank needs no connections.
        alone = members.size() == 1
        expected += 0 if alone else footprint.engine_sockets(*set_of, exchanged=False)
        assert opened() == expected
        _exchange(members)
        expected = job + (0 if alone else footprint.engine_sockets(*set_of, exchanged=True))
    assert opened() == expected
    expected = footprint.threads(lanes, sets=members.included())
    assert started(expected) == expected
    hvd.remove_process_set(members)
    hvd.barrier()
    hvd.shutdown()
    assert footprint.open_sockets() == before
    assert footprint.threads_after_join(threads_before) == threads_before


@pytest.mark.parametrize(("size", "lanes"), [(2, 1), (3, 4), (5, 2), (8, 4)])
def test_sockets_and_threads_are_those_of_the_formula(size, lanes):
    environment = {"AIACC_LANES": str(lanes), "AIACC_ENGINE": "tcp"}
    run_ranks(size, _counts, lanes, env=environment)


def _fill(arrays, process_set):
    """Several times, so that every lane has packed."""
    for _ in range(6):
        handles = [
            hvd.allreduce_async_(array, name=f"fill.{i}", op=hvd.Sum, process_set=process_set)
            for i, array in enumerate(arrays)
        ]
        for handle in handles:
            hvd.synchronize(handle)


def _memory(lanes):
    arrays = [np.ones(16384, np.float32) for _ in range(64 * (lanes + 1))]
    before = footprint.resident_kib()
    hvd.init()
    _fill(arrays, hvd.global_process_set)
    job = footprint.resident_kib() - before
    members = hvd.add_process_set(list(range(1, hvd.size())))
    included = members.included()
    if included:
        _fill(arrays, members)
        _exchange(members)
    both = footprint.resident_kib() - before
    hvd.barrier()
    hvd.shutdown()
    assert job <= footprint.memory_kib(lanes, sets=0)
    assert both <= footprint.memory_kib(lanes, sets=int(included))


@pytest.mark.parametrize(("size", "lanes"), [(2, 2), (3, 1), (3, 4)])
def test_memory_is_at_most_that_of_the_formula(size, lanes):
    run_ranks(size, _memory, lanes, env={"AIACC_LANES": str(lanes), "AIACC_ENGINE": "tcp"})


def _leave(descriptors):
    """Let this process open so many more, and never again more."""
    highest = max(footprint.descriptors())
    limit = highest + 1 + descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    taken = []
    with contextlib.suppress(OSError):  # there may be holes
        while True:
            taken.append(os.dup(0))
    for _ in range(descriptors):
        os.close(taken.pop())


def _text_of(culprit):
    """What an error says on this rank, which names the culprit's process to all."""
    own = f"process {os.getpid()} on "
    if culprit:
        return rf"(?s){own}.*files and sockets open \(its limit is.*ulimit -n"
    return rf"(?s)^(?!.*({own}|this process)).*ulimit -n"


@pytest.mark.parametrize("poor_rank", [0, 1])
@on_ranks(2, starts=False, env={"AIACC_LANES": "32", "AIACC_ENGINE": "tcp"})
def test_a_rank_without_descriptors_for_its_lanes_says_so_to_all(poor_rank):
    culprit = int(os.environ["AIACC_RANK"]) == poor_rank
    if culprit:
        _leave(30)
    with pytest.raises(aiacc.CollectiveError, match=_text_of(culprit)):
        hvd.init()


@on_ranks(2, env={"AIACC_ENGINE": "tcp"})
def test_a_rank_without_descriptors_for_an_alltoall_says_so_to_all():
    hvd.barrier()
    if hvd.rank() == 1:
        _leave(0)
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
    with pytest.raises(aiacc.CollectiveError, match=_text_of(hvd.rank() == 1)):
        _exchange()


@on_ranks(2, starts=False)
def test_the_soft_limit_is_raised():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(100, hard), hard))
    hvd.init()
    hvd.barrier()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)


@on_ranks(3, env={"AIACC_ENGINE": "tcp", "AIACC_CONNECT_TIMEOUT_S": "20"})
def test_300_idle_strangers_and_few_descriptors():
    # Rank 1 has few descriptors; its strangers are of rank 0, which has enough.
    if hvd.rank() == 1:
        (port,) = (one.getsockname()[1] for one in footprint.tcp_sockets(listening=True))
        _leave(60)
    else:
        port = 0
    port = int(hvd.allreduce(np.array([port]), op=hvd.Sum)[0])
    strangers = []
    if hvd.rank() == 0:
        for count in range(300):
            strangers.append(socket.create_connection(("127.0.0.1", port)))
            if count % 3 == 0:
                strangers[-1].send(b"AIAC\2")
    members = hvd.add_process_set([0, 1])
    if members.included():
        _exchange(members)
    _exchange()
    hvd.barrier()
    for stranger in strangers:
        stranger.close()
