"""What the core offers to front-ends: groups, reduce-scatter, all-to-all, join, automatic names."""

from __future__ import annotations

import time

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc import _core
from aiacc.collectives import submission
from tests.support.ranks import run_ranks

_CODES = {np.dtype(np.int32): 4, np.dtype(np.float32): 7, np.dtype(np.float64): 8}


def _address(array):
    return array.__array_interface__["data"][0]


def _group(kind, name, inputs, outputs, op=hvd.Sum, process_set=0):
    prepared = _core.prepare(
        kind,
        "test",
        name,
        tuple(array.shape for array in inputs),
        tuple(_CODES[array.dtype] for array in inputs),
        process_set,
        -1,
        op,
    )
    handle = prepared.start(
        tuple(map(_address, inputs)),
        tuple(map(_address, outputs)) if outputs else (0,) * len(inputs),
    )
    _core.wait(handle)
    return handle


def _times():
    hvd.init()
    array = np.ones(1000, np.float32)
    began = time.perf_counter()
    outputs = [np.empty_like(array) for _ in range(2)]
    handles = [
        _core.prepare(
            _core.ALLREDUCE, "test", f"t{i}", array.shape, _CODES[array.dtype], 0, -1, hvd.Sum
        ).start(_address(array), _address(output))
        for i, output in enumerate(outputs)
    ]
    for handle in handles:
        submitted, finished = _core.times(handle)
        assert began <= submitted <= finished <= time.perf_counter()
        assert _core.times(handle) == (submitted, finished)  # it was not released
        _core.wait(handle)
        with pytest.raises(ValueError, match="not an outstanding handle"):
            _core.times(handle)
    hvd.shutdown()


def test_operations_tell_when_they_were_under_way():
    run_ranks(2, _times)


def _groups():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    inputs = [np.full(3, rank, np.int32), np.full((2, 70_000), rank, np.float64)]
    for _ in range(3):
        outputs = [np.empty_like(array) for array in inputs]
        _group(_core.ALLREDUCE, "g", inputs, outputs)
        assert all(np.all(array == sum(range(size))) for array in outputs)
        handle = _group(_core.ALLGATHER, "gather", [inputs[0][:rank], inputs[1]], None)
        rows = [shape for _, shape in _core.take_outputs(handle)]
        assert rows == [(sum(range(size)),), (2 * size, 70_000)]
    mine = 5 // size + (rank < 5 % size)
    outputs = [np.empty((mine, 2), np.float32)]
    _group(_core.REDUCESCATTER, "rs", [np.ones((5, 2), np.float32)], outputs)
    assert np.all(outputs[0] == size)
    with pytest.raises(ValueError, match="as many shapes, at least 1"):
        _core.prepare(_core.ALLREDUCE, "test", "g", (), (), 0, -1)
    with pytest.raises(ValueError, match="as many shapes, at least 1"):
        _core.prepare(_core.ALLREDUCE, "test", "g", ((1,),), (7, 7), 0, -1)
    with pytest.raises(TypeError, match="start of a group of 2"):
        _core.prepare(_core.ALLREDUCE, "test", "g", ((1,), (1,)), (7, 7), 0, -1).start((0,), (0,))
    with pytest.raises(ValueError, match="group of broadcast"):
        _group(_core.BROADCAST, "g", inputs, inputs)
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups(size):
    run_ranks(size, _groups)


def _leftovers():
    """Defaults hold whatever the submission before, whose memory is used again, was of."""
    hvd.init()
    ones, one = np.ones(4, np.float32), ((1,), (1,))
    for before in (
        (_core.ALLREDUCE, "test", "a long name for one", one, (7, 7), 0, -1, hvd.Max, 2.0, 3.0, 1),
        (_core.BROADCAST, "test", "b", (1,), 7, 0, -1, hvd.Sum, 1.0, 1.0, 0, 5),
        (_core.ALLTOALL, "test", "c", (1,), 7, 0, -1, hvd.Sum, 1.0, 1.0, 0, 0, (1, 2, 3)),
    ):
        _core.prepare(*before)
        with pytest.raises(ValueError, match="expected extents >= 0"):  # filled in by halves
            _core.prepare(_core.ALLREDUCE, "other", None, (-1,), 7, 0, -1)
        kept = _core.prepare(_core.ALLREDUCE, "test", "d", (4,), 7, 0, -1)
        other = _core.prepare(_core.ALLREDUCE, "test", "e", (4,), 7, 0, -1)
        sums = [np.empty_like(ones), np.empty_like(ones)]
        handles = [
            prepared.start(_address(ones), _address(total))
            for prepared, total in zip((kept, other), sums, strict=True)
        ]
        for handle, total in zip(handles, sums, strict=True):
            _core.wait(handle)
            assert total.tolist() == [hvd.size()] * 4
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_a_submission_has_nothing_of_the_one_before(size):
    run_ranks(size, _leftovers)


def _alltoall():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    splits = tuple(rank + to for to in range(size))
    source = np.repeat(np.arange(size, dtype=np.float32) + 10 * rank, splits)
    handle = submission.alltoall("a", source.shape, 7, -1, splits).start(_address(source), 0)
    _core.wait(handle)
    data, shape, received = _core.take_alltoall(handle)
    assert received == tuple(sender + rank for sender in range(size))
    assert shape == (sum(received),)
    expected = np.repeat(10 * np.arange(size, dtype=np.float32) + rank, received)
    np.testing.assert_array_equal(data.view(np.float32), expected)
    for bad in ((1,) * (size + 1), (-1,) * size, (2,) * size):
        with pytest.raises(ValueError, match="split"):
            submission.alltoall("bad", (size,), 7, -1, bad).start(_address(source), 0)
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_alltoall(size):
    run_ranks(size, _alltoall)


def _proposals():
    hvd.init()
    for algorithm in ("tree", "auto", ""):
        _core.propose_parameters(4096, 1, algorithm)
        hvd.barrier()  # its round, or an earlier one, has carried the proposal
        assert hvd.allreduce(np.ones(5000), op=hvd.Sum).tolist() == [hvd.size()] * 5000
    with pytest.raises(ValueError, match=r'algorithm "star".*expected auto, ring or tree'):
        _core.propose_parameters(4096, 1, "star")
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_proposed_parameters(size):
    run_ranks(size, _proposals, env={"AIACC_GPU_ALGORITHM": "ring"})


def _join():
    return _core.take_join(submission.join().start(0, 0))


def _uneven_epochs():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    lasts = []
    for _ in range(3):
        for step in range(rank + 1):
            total = hvd.allreduce(np.array([1, rank]), op=hvd.Sum)
            assert total.tolist() == [size - step, sum(range(step, size))]
        lasts.append(_join())
        assert hvd.allreduce(np.array([7.0]))[0] == 7.0
    # A gather that meets a joined rank fails at once, also with ranks of different histories.
    if rank > 0:
        for _ in range(rank):
            hvd.allreduce(np.ones(1))
        with pytest.raises(aiacc.CollectiveError, match="has joined"):
            hvd.allgather(np.ones(1))
    lasts.append(_join())
    assert hvd.allgather(np.array([rank])).tolist() == list(range(size))
    hvd.shutdown()
    return lasts


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_join(size):
    results = run_ranks(size, _uneven_epochs)
    assert all(lasts == results[0] for lasts in results)
    assert results[0][:3] == [size - 1] * 3


def _different_calls():
    hvd.init()
    for _ in range(3):
        call = hvd.allreduce if hvd.rank() == 0 else hvd.allgather
        with pytest.raises(aiacc.MismatchError) as failure:
            call(np.ones(1))
        for text in ("rank 0 for 'allreduce.noname.", "rank 1", "'allgather.noname."):
            assert text in str(failure.value)
        hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_unnamed_operations_with_nothing_in_common(size):
    run_ranks(size, _different_calls)
