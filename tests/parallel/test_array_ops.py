"""Every operation of aiacc.array, for every dtype and reduction, against plain NumPy."""

from __future__ import annotations

import functools
import itertools
import time

import ml_dtypes
import numpy as np
import pytest

import aiacc.array as hvd
from tests.support.ranks import run_ranks

BOOL = np.dtype("bool")
DTYPES = [
    *(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32", "int64")),
    *(np.dtype(name) for name in ("uint32", "uint64")),
    *(np.dtype(name) for name in ("float16", "float32", "float64")),
    BOOL,
    np.dtype(ml_dtypes.bfloat16),
]
OPS = {
    hvd.Sum: np.add,
    hvd.Min: np.minimum,
    hvd.Max: np.maximum,
    hvd.Product: np.multiply,
}
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (4, 5, 6), (4097,)]
SIZES = [1, 2, 3, 4]


def _input(rank, shape, dtype, seed=0):
    """Small whole numbers: sums and products of four are exact in every dtype."""
    generator = np.random.default_rng([rank, seed, *shape])
    return generator.integers(0, 4, size=shape).astype(dtype)


def _reference(op, inputs, dtype):
    if dtype == BOOL:
        combine = np.logical_or if op in (hvd.Sum, hvd.Max) else np.logical_and
    else:
        combine = OPS[op]
    return functools.reduce(combine, inputs).astype(dtype)


def _everyones(shape, dtype, seed=0):
    return [_input(rank, shape, dtype, seed) for rank in range(hvd.size())]


def _equal(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


def _reduce_everything():
    for seed, (dtype, op, shape) in enumerate(itertools.product(DTYPES, OPS, SHAPES)):
        inputs = _everyones(shape, dtype, seed)
        mine = inputs[hvd.rank()]
        given = mine.copy()
        expected = _reference(op, inputs, dtype)
        _equal(hvd.allreduce(mine, op=op), expected)
        _equal(mine, given)
        assert hvd.allreduce_(mine, name=f"in_place.{seed}", op=op) is mine
        _equal(mine, expected)


def _average_and_scale():
    size, rank = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        if dtype == BOOL:
            continue
        # Multiples of 12 divide by 1, 2, 3 and 4.
        mine = np.array([12, 24, 0], dtype)
        _equal(hvd.allreduce(mine), mine)
        _equal(hvd.allreduce(mine, op=hvd.Average), mine)
    # Averages of integers are truncated toward zero.
    given = np.array([1, 2, -3], np.int32) * (rank + 1)
    total = np.array([1, 2, -3]) * sum(range(1, size + 1))
    _equal(hvd.allreduce(given), np.trunc(total / size).astype(np.int32))
    # Exact up to the limits of every dtype; Python's numbers are as long as they have to be.
    for dtype in (dtype for dtype in DTYPES if dtype.kind in "iu"):
        most = np.iinfo(dtype).max // size
        total = sum(most - other for other in range(size))
        given = np.array([most - rank], dtype)
        np.testing.assert_array_equal(hvd.allreduce(given), np.array([total // size], dtype))
        if dtype.kind == "i":
            np.testing.assert_array_equal(
                hvd.allreduce(-given), np.array([-(total // size)], dtype)
            )
    # Factors of integers are applied per rank, before the sum, and truncated.
    given = np.array([1, 3], np.int64)
    _equal(hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5), np.array([0, size], np.int64))
    given = np.array([1.0, 2.0], np.float32)
    _equal(
        hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        given * 2 * size,
    )


def _gather_everything():
    size, rank = hvd.size(), hvd.rank()
    for seed, dtype in enumerate(DTYPES):
        equal = _everyones((2, 3), dtype, seed)
        _equal(hvd.allgather(equal[rank]), np.concatenate(equal))
        ragged = [_input(r, (2 * r, 3), dtype, seed) for r in range(size)]  # none from rank 0
        for name in ("ragged", None):
            _equal(hvd.allgather(ragged[rank], name), np.concatenate(ragged))
        nothing = np.zeros((0, 2), dtype)
        _equal(hvd.allgather(nothing), nothing)
    with pytest.raises(ValueError, match="reshape"):
        hvd.allgather(np.float32(1))


def _broadcast_everything():
    size, rank = hvd.size(), hvd.rank()
    for seed, (dtype, shape, root) in enumerate(itertools.product(DTYPES, SHAPES, range(size))):
        inputs = _everyones(shape, dtype, seed)
        given = inputs[rank].copy()
        _equal(hvd.broadcast(given, root), inputs[root])
        _equal(given, inputs[rank])
        assert hvd.broadcast_(given, root) is given
        _equal(given, inputs[root])


def _many_in_any_order():
    """Names pair the operations: every rank submits in an order of its own."""
    rank = hvd.rank()
    names = np.random.default_rng(rank).permutation(200)
    arrays = {int(n): _input(rank, (int(n) + 1,), np.float32, int(n)) for n in names}
    handles = {n: hvd.allreduce_async_(a, name=f"t{n}", op=hvd.Sum) for n, a in arrays.items()}
    for n in np.random.default_rng(100 + rank).permutation(200):
        result = hvd.synchronize(handles[int(n)])
        assert result is arrays[int(n)]
        _equal(
            result,
            _reference(hvd.Sum, _everyones((int(n) + 1,), np.float32, int(n)), np.dtype("f4")),
        )
    assert hvd.synchronize(handles[0]) is None  # as Horovod does
    with pytest.raises(ValueError, match=str(handles[0])):
        hvd.poll(handles[0])


def _poll_and_duplicates():
    """Rank 0 is ahead: nothing that it submits can be done before rank 1 has passed the barrier."""
    rank, ones = hvd.rank(), np.ones(3)
    if rank == 1:
        hvd.barrier()
    handle = hvd.allreduce_async(ones, name="polled", op=hvd.Sum)
    if rank == 0:
        assert not hvd.poll(handle)
        with pytest.raises(ValueError, match=r"allreduce\.polled"):
            hvd.allreduce_async(ones, name="polled", op=hvd.Sum)
        hvd.barrier()
    while not hvd.poll(handle):
        time.sleep(0.001)  # polling has no event to wait for
    _equal(hvd.synchronize(handle), ones * 2)


class _Foreign:
    """An array of another library, known to NumPy only by its interface."""

    def __init__(self, array):
        self._array = array
        self.__array_interface__ = array.__array_interface__


def _take_foreign_arrays():
    given = _Foreign(np.arange(3.0))
    _equal(hvd.allreduce(given, op=hvd.Sum), np.arange(3.0) * hvd.size())
    assert hvd.allreduce_(given, op=hvd.Sum) is given
    _equal(np.asarray(given), np.arange(3.0) * hvd.size())
    _equal(hvd.allgather(np.asarray(given)[:1]), np.zeros(hvd.size()))
    _equal(hvd.allreduce(np.float32(2)), np.array(2, np.float32))


def _take_numbers_and_lists():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(rank + 0.5) == (size - 1) / 2 + 0.5
    _equal(hvd.allreduce(rank, op=hvd.Max), np.array(size - 1))
    _equal(hvd.allreduce(rank == 0, op=hvd.Min), np.array(size == 1))
    _equal(hvd.allgather([[rank, 7]]), np.array([[r, 7] for r in range(size)]))
    _equal(hvd.broadcast((1.5, rank), 0), np.array([1.5, 0.0]))
    with pytest.raises(ValueError, match=r"must not be written.*without underscore"):
        hvd.allreduce_([1.0])
    with pytest.raises(ValueError, match=r"allreduce of 'r'.*lists of equal lengths"):
        hvd.allreduce([[1], [2, 3]], name="r")
    with pytest.raises(ValueError, match="allreduce of 'w': array of dtype <U1"):
        hvd.allreduce(["a"], name="w")


def _objects():
    rank, size = hvd.rank(), hvd.size()
    mine = {"rank": rank, "text": "x" * 1000 * rank}
    for name in (None, "object"):
        everyones = hvd.allgather_object(mine, name)
        assert everyones == [{"rank": r, "text": "x" * 1000 * r} for r in range(size)]
        assert hvd.broadcast_object(mine, size - 1, name) == everyones[-1]


def _refuse_bad_input():
    good = np.ones((2, 3), np.float32)
    readonly = good.copy()
    readonly.flags.writeable = False
    for bad, text in [
        (good.T, "contiguous"),
        (good.astype(complex), "complex128"),
        (good.astype(">f4"), "byte order"),
    ]:
        with pytest.raises(ValueError, match=rf"an unnamed allreduce: .*{text}"):
            hvd.allreduce(bad)
    with pytest.raises(ValueError, match="writable"):
        hvd.allreduce_(readonly)
    with pytest.raises(TypeError, match=r"dict.*allgather_object"):
        hvd.allreduce({})
    # The message has the beginning of the name, in whole characters.
    with pytest.raises(ValueError, match=r"'allreduce\.x?é+': a name of 660\d\d bytes"):
        hvd.allreduce(good, name="x" + "é" * 33000)
    with pytest.raises(ValueError, match=r"'allreduce\.x?é+': a name of 660\d\d bytes"):
        hvd.allreduce(good, name="é" * 33000)
    with pytest.raises(ValueError, match="op=17"):
        hvd.allreduce(good, op=17)
    with pytest.raises(ValueError, match="at most one"):
        hvd.allreduce(good, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="an unnamed broadcast: root_rank"):
        hvd.broadcast(good, hvd.size())
    with pytest.warns(DeprecationWarning, match="average"):
        _equal(hvd.allreduce(good, average=False), good * hvd.size())


def _check_everything():
    hvd.init()
    _reduce_everything()
    _average_and_scale()
    _gather_everything()
    _broadcast_everything()
    _many_in_any_order()
    _take_foreign_arrays()
    _take_numbers_and_lists()
    _objects()
    if hvd.size() == 2:
        _poll_and_duplicates()
    hvd.shutdown()


@pytest.mark.parametrize("size", SIZES)
def test_every_operation_dtype_and_reduction(size):
    run_ranks(size, _check_everything)


def _check_small_units():
    hvd.init()
    _reduce_everything()
    big = _everyones((300_001,), np.float32)
    expected = _reference(hvd.Sum, big, np.dtype("f4"))
    _equal(hvd.allreduce(big[hvd.rank()], op=hvd.Sum), expected)
    _many_in_any_order()
    hvd.shutdown()


def test_tensors_larger_and_smaller_than_a_unit_on_several_lanes():
    run_ranks(2, _check_small_units, env={"AIACC_UNIT_BYTES": "4096", "AIACC_LANES": "3"})


def _bool_has_no_average():
    """Which would be False for True and True."""
    true = np.array([True, True])
    calls = [
        lambda: hvd.allreduce(True),
        lambda: hvd.allreduce(true),
        lambda: hvd.allreduce_(true, op=hvd.Average),
        lambda: hvd.allreduce_async(true),
        lambda: hvd.grouped_allreduce([np.ones(2), true]),
        lambda: hvd.reducescatter(true),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"op=Average of bool.* cast to float32"):
            call()
    for op in OPS:
        _equal(hvd.allreduce(true, op=op), true)
    _equal(hvd.allgather(true), np.ones(2 * hvd.size(), bool))


def _check_refusals():
    hvd.init()
    _bool_has_no_average()
    _refuse_bad_input()
    hvd.shutdown()


def test_bad_input_is_refused_with_a_reason():
    run_ranks(2, _check_refusals)


@pytest.mark.mpi
@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_over_mpi(size):
    run_ranks(size, _check_everything, launcher="mpirun", env={"AIACC_ENGINE": "mpi"})
