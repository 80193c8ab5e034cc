"""All-to-all, reduce-scatter, groups and join of `aiacc.array`, against plain NumPy."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import aiacc.array as hvd
from aiacc.collectives.handles import pending
from aiacc.collectives.splits import scattered_rows
from tests.support.ranks import run_ranks

DTYPES = [
    *(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32", "int64")),
    *(np.dtype(name) for name in ("uint32", "uint64")),
    *(np.dtype(name) for name in ("float16", "float32", "float64", "bool")),
    np.dtype(ml_dtypes.bfloat16),
]


def _input(rank, shape, dtype, seed=0):
    """Small whole numbers: sums of four are exact in every dtype."""
    generator = np.random.default_rng([rank, seed, *shape])
    return generator.integers(0, 4, size=shape).astype(dtype)


def _sum(inputs):
    if inputs[0].dtype == bool:
        return np.logical_or.reduce(inputs)
    return sum(inputs[1:], inputs[0])


def _equal(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


def _mine(whole):
    rank, size = hvd.rank(), hvd.size()
    begin = sum(scattered_rows(whole.shape[0], r, size) for r in range(rank))
    return whole[begin : begin + scattered_rows(whole.shape[0], rank, size)]


def _all_to_all(rank, size):
    for seed, (dtype, tail) in enumerate(itertools.product(DTYPES, [(), (3,)])):
        splits = [[s + r for s in range(size)] for r in range(size)]
        inputs = [_input(r, (sum(splits[r]), *tail), dtype, seed) for r in range(size)]
        parts = [np.split(inputs[r], np.cumsum(splits[r])[:-1]) for r in range(size)]
        expected = np.concatenate([parts[r][rank] for r in range(size)])
        for given in (splits[rank], np.array(splits[rank], np.int32)):
            output, received = hvd.alltoall(inputs[rank], given, name=f"a{seed}")
            _equal(output, expected)
            _equal(received, np.array([splits[r][rank] for r in range(size)], np.int32))
    even = np.arange(2 * size)
    _equal(hvd.alltoall(even), np.tile(even[2 * rank : 2 * rank + 2], size))
    with pytest.raises(ValueError, match=r"int64.*splits\.astype"):
        hvd.alltoall(even, np.ones(size, np.int64))
    with pytest.raises(ValueError, match="without dimensions"):
        hvd.alltoall(np.float32(1))


def _reduce_scatter(rank, size):
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, [(2 * size + 1, 3), (0, 2)])):
        inputs = [_input(r, shape, dtype, seed) for r in range(size)]
        _equal(hvd.reducescatter(inputs[rank], op=hvd.Sum), _mine(_sum(inputs)))
    twelve = np.full((size + 1, 2), 12.0)
    _equal(hvd.reducescatter(twelve), _mine(twelve))
    _equal(
        hvd.reducescatter(twelve, "s", hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        _mine(twelve * 1.5 * size),
    )
    with pytest.raises(hvd.HorovodInternalError, match="expected Average or Sum"):
        hvd.reducescatter(twelve, op=hvd.Max)


def _groups(rank, size):
    everyones = [
        [_input(r, (3,), np.float32), _input(r, (2, 2), np.int64, 1), _input(r, (), np.float64)]
        for r in range(size)
    ]
    mine = everyones[rank]
    expected = [_sum(list(arrays)) for arrays in zip(*everyones, strict=True)]
    for actual in (
        hvd.grouped_allreduce(mine, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(iter(mine), name="g", op=hvd.Sum)),
    ):
        for one, other in zip(actual, expected, strict=True):
            _equal(one, other)
    copies = [array.copy() for array in mine]
    assert all(
        a is b for a, b in zip(hvd.grouped_allreduce_(copies, op=hvd.Sum), copies, strict=True)
    )
    for one, other in zip(copies, expected, strict=True):
        _equal(one, other)
    rows = [[_input(r, (r, 2), np.int8), _input(r, (4,), np.float64)] for r in range(size)]
    for one, parts in zip(hvd.grouped_allgather(rows[rank]), zip(*rows, strict=True), strict=True):
        _equal(one, np.concatenate(parts))
    whole = [np.full((size + 1, 2), 6.0), np.full(1, size, np.int32)]
    for one, other in zip(hvd.grouped_reducescatter(whole), whole, strict=True):
        _equal(one, _mine(other))
    with pytest.raises(TypeError, match="wrap it in a list"):
        hvd.grouped_allreduce(np.ones(2))
    with pytest.raises(ValueError, match="empty list"):
        hvd.grouped_allgather([])
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with pytest.raises(
        ValueError, match=r"array 1 of an unnamed grouped_allreduce.*without underscore"
    ):
        hvd.grouped_allreduce_([np.ones(2), frozen])


def _join(rank, size):
    for step in range(rank + 1):
        total = hvd.allreduce(np.ones(2), op=hvd.Sum, name=f"step{step}")
        _equal(total, np.full(2, float(sum(1 for r in range(size) if r >= step))))
    assert 0 <= hvd.join() < size


def _everything():
    hvd.init()
    for body in (_all_to_all, _reduce_scatter, _groups, _join):
        body(hvd.rank(), hvd.size())
    assert not pending
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation(size):
    run_ranks(size, _everything)
