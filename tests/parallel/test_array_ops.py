"""Every operation of aiacc.array against plain NumPy; and what the core offers beside them."""

import time

import numpy as np
import pytest

import aiacc.array as hvd
from aiacc import _core
from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from tests.support import operations
from tests.support.jobs import OVER_MPI, TWO_AND_THREE, on_ranks
from tests.support.operations import assert_equal
from tests.support.ranks import run_ranks

FRONT = operations.Frontend(hvd, np.asarray, np.asarray, tells_splits=False)


def check_operations():
    """All of them, in any order."""
    for number, case in enumerate(operations.table(hvd.rank(), hvd.size())):
        operations.check(FRONT, case, number)
    # Names pair the operations: every rank submits in an order of its own.
    rank, size = hvd.rank(), hvd.size()
    all_of_each = [operations.everyones(size, (n + 1,), seed=n) for n in range(200)]
    names = np.random.default_rng(rank).permutation(200).tolist()
    arrays = {n: all_of_each[n][rank].copy() for n in names}
    handles = {n: hvd.allreduce_async_(a, name=f"t{n}", op=hvd.Sum) for n, a in arrays.items()}
    for n in np.random.default_rng(100 + rank).permutation(200).tolist():
        result = hvd.synchronize(handles[n])
        assert result is arrays[n]
        assert_equal(result, operations.reduced("Sum", all_of_each[n]))


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
    assert_equal(hvd.synchronize(handle), ones * 2)


class _Foreign:
    """An array of another library, known to NumPy only by its interface."""

    def __init__(self, array):
        self._array = array
        self.__array_interface__ = array.__array_interface__


SIZES = (1, 3, pytest.param(2, marks=pytest.mark.fast), pytest.param(4, marks=pytest.mark.nightly))


def _take_foreign_arrays():
    given = _Foreign(np.arange(3.0))
    assert_equal(hvd.allreduce(given, op=hvd.Sum), np.arange(3.0) * hvd.size())
    assert hvd.allreduce_(given, op=hvd.Sum) is given
    assert_equal(np.asarray(given), np.arange(3.0) * hvd.size())
    assert_equal(hvd.allreduce(np.float32(2)), np.array(2, np.float32))
    day, size = np.array(["2020-02-29"], "datetime64[D]"), hvd.size()
    assert_equal(hvd.broadcast(day + hvd.rank(), 0), day)
    pair = np.array([(hvd.rank(), 1.5)], "i4,f8")
    assert_equal(hvd.allgather(pair), np.array([(r, 1.5) for r in range(size)], "i4,f8"))
    group = hvd.grouped_allreduce_async(iter([np.ones(2), np.ones(3)]), op=hvd.Sum)
    assert_equal(hvd.synchronize(group), [np.full(n, float(hvd.size())) for n in (2, 3)])


def _take_numbers_and_lists():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(rank + 0.5) == (size - 1) / 2 + 0.5
    assert_equal(hvd.allreduce(rank, op=hvd.Max), np.array(size - 1))
    assert_equal(hvd.allreduce(rank == 0, op=hvd.Min), np.array(size == 1))
    assert_equal(hvd.allgather([[rank, 7]]), np.array([[r, 7] for r in range(size)]))
    assert_equal(hvd.broadcast((1.5, rank), 0), np.array([1.5, 0.0]))


@on_ranks(*SIZES)
def test_every_operation_dtype_and_reduction():
    check_operations()
    _take_foreign_arrays()
    _take_numbers_and_lists()
    operations.check_objects(hvd)
    operations.check_complex_numbers_are_no_pairs(FRONT)
    operations.check_join(FRONT)
    if hvd.size() == 2:
        _poll_and_duplicates()
    assert not pending
    hvd.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_every_operation_over_mpi(size):
    run_ranks(size, test_every_operation_dtype_and_reduction.body, {}, **OVER_MPI)


@on_ranks(2, env={"AIACC_UNIT_BYTES": "4096", "AIACC_LANES": "3"})
def test_tensors_larger_and_smaller_than_a_unit_on_several_lanes():
    check_operations()
    big = operations.everyones(hvd.size(), (300_001,))
    total = hvd.allreduce(big[hvd.rank()], op=hvd.Sum)
    assert_equal(total, operations.reduced("Sum", big))


GOOD = np.ones((2, 3), np.float32)
READONLY = GOOD.copy()
READONLY.flags.writeable = False
TOO_LONG = r"'allreduce\.x?é+': a name of 660\d\d bytes"
REFUSED = [
    (lambda: hvd.allreduce(GOOD.T), r"an unnamed allreduce: .*contiguous"),
    (
        lambda: hvd.allreduce(GOOD.astype(complex)),
        r"an unnamed allreduce: .*complex128.*view\('float64'\)",
    ),
    (lambda: hvd.allreduce(np.ma.array(GOOD, mask=True)), r"masked array.*array\.filled"),
    (lambda: hvd.allgather(np.array([{}])), r"dtype object.*allgather_object"),
    (lambda: hvd.allreduce(GOOD.astype(">f4")), r"an unnamed allreduce: .*byte order"),
    (lambda: hvd.allreduce_(READONLY), "writable"),
    (lambda: hvd.allreduce_([1.0]), r"must not be written.*without underscore"),
    (lambda: hvd.broadcast_(np.float64(1), 0), r"must not be written.*without underscore"),
    (
        lambda: hvd.grouped_allreduce_([np.ones(2), READONLY]),
        r"array 1 of an unnamed grouped_allreduce.*without underscore",
    ),
    (lambda: hvd.allreduce([[1], [2, 3]], name="r"), r"allreduce of 'r'.*lists of equal lengths"),
    (lambda: hvd.allreduce(["a"], name="w"), "allreduce of 'w': array of dtype <U1"),
    # The message has the beginning of the name, in whole characters.
    (lambda: hvd.allreduce(GOOD, name="x" + "é" * 33000), TOO_LONG),
    (lambda: hvd.allreduce(GOOD, name="é" * 33000), TOO_LONG),
    (lambda: hvd.broadcast(GOOD, hvd.size()), "an unnamed broadcast: root_rank"),
    (lambda: hvd.allgather(np.float32(1)), "reshape"),
    (lambda: hvd.alltoall(np.float32(1)), "without dimensions"),
    (lambda: hvd.alltoall(np.arange(2), np.ones(2, np.int64)), r"int64.*splits\.astype"),
    (lambda: hvd.grouped_allgather([]), "empty list"),
    (
        lambda: hvd.grouped_allreduce_([np.ones(0), (rows := np.ones((3, 2)))[1:], rows[:2]]),
        "tensors 1 and 2 share memory",
    ),
]
REFUSED_BY_TYPE = [
    (lambda: hvd.allreduce({}), r"dict.*allgather_object"),
    (lambda: hvd.grouped_allreduce(np.ones(2)), "wrap it in a list"),
]


@on_ranks(2)
def test_bad_input_is_refused_with_a_reason():
    operations.check_bool_has_no_average(FRONT)
    assert_equal(hvd.allgather(np.array([True])), np.ones(hvd.size(), bool))
    for kind, calls in ((ValueError, REFUSED), (TypeError, REFUSED_BY_TYPE)):
        for call, text in calls:
            with pytest.raises(kind, match=text):
                call()
    with pytest.raises(hvd.HorovodInternalError, match="expected Average or Sum"):
        hvd.reducescatter(np.ones(2), op=hvd.Max)
    with pytest.warns(DeprecationWarning, match="average"):
        assert_equal(hvd.allreduce(GOOD, average=False), GOOD * hvd.size())


def test_tensors_that_numpy_does_not_take_are_refused_with_a_reason():
    """In this process: ranks would have to import torch."""
    torch = pytest.importorskip("torch")
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)  # NumPy makes an array of memory of its own, without a word
    hvd.init()
    for tensor, text in (
        (torch.tensor([1j]).conj().imag, r"negated values.*resolve_neg"),
        (torch.ones(2, requires_grad=True), r"NumPy does not take: .*detach"),
        (torch.ones(2, dtype=torch.bfloat16), r"use the front-end of"),
        (freed, "Tensor that has no memory of its own"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.broadcast(tensor, 0)
    hvd.shutdown()


# --- what the core offers to front-ends: times, proposals and refusals

_FLOAT32 = 7


def _address(array):
    return array.__array_interface__["data"][0]


@on_ranks(2)
def test_operations_tell_when_they_were_under_way():
    array = np.ones(1000, np.float32)
    began = time.perf_counter()
    outputs = [np.empty_like(array) for _ in range(2)]
    handles = [
        _core.prepare(
            _core.ALLREDUCE, "test", f"t{i}", array.shape, _FLOAT32, 0, -1, hvd.Sum
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


def _allreduces(shapes, codes):
    return _core.prepare(_core.ALLREDUCE, "test", "g", shapes, codes, 0, -1)


@on_ranks(1, 3)
def test_what_does_not_fit_together_is_refused_and_leaves_no_trace():
    """Of who calls the core; what front-ends offer are in tests/support/operations.py."""
    size = hvd.size()
    for shapes, codes in (((), ()), (((1,),), (7, 7))):
        with pytest.raises(ValueError, match="as many shapes, at least 1"):
            _allreduces(shapes, codes)
    with pytest.raises(TypeError, match="start of a group of 2"):
        _allreduces(((1,), (1,)), (7, 7)).start((0,), (0,))
    with pytest.raises(ValueError, match="group of broadcast"):
        _core.prepare(_core.BROADCAST, "test", "g", ((3,), (2,)), (7, 7), 0, -1).start(
            (0, 0), (0, 0)
        )
    for bad in ((1,) * (size + 1), (-1,) * size, (2,) * size):
        with pytest.raises(ValueError, match="split"):
            submission.alltoall("bad", (size,), 7, -1, bad).start(0, 0)
    # Defaults hold whatever the submission before, whose memory is used again, was of.
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


@on_ranks(1, 2, env={"AIACC_GPU_ALGORITHM": "ring"})
def test_proposed_parameters():
    for algorithm in ("tree", "auto", ""):
        _core.propose_parameters(4096, 1, algorithm)
        hvd.barrier()  # its round, or an earlier one, has carried the proposal
        assert hvd.allreduce(np.ones(5000), op=hvd.Sum).tolist() == [hvd.size()] * 5000
    with pytest.raises(ValueError, match=r'algorithm "star".*expected auto, ring or tree'):
        _core.propose_parameters(4096, 1, "star")
