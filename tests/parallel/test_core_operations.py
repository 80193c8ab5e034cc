"""What the core offers to front-ends beside operations: times, proposals and refusals."""

import time

import numpy as np
import pytest

import aiacc.array as hvd
from aiacc import _core
from aiacc.collectives import submission
from tests.support.jobs import on_ranks

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
def test_what_does_not_fit_together_is_refused():
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


@on_ranks(1, 2)
def test_a_submission_has_nothing_of_the_one_before():
    """Defaults hold whatever the submission before, whose memory is used again, was of."""
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
