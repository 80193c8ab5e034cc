"""What ranks disagree on is named on every rank, and what is not finite where it comes from."""

import itertools
import re
import time

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from tests.support.jobs import TWO_AND_THREE, in_job, on_ranks
from tests.support.ranks import run_ranks


def _disagree(call, *texts):
    """``call`` is one on the last rank and the other elsewhere; every rank gets the same error.

    Afterwards all still work together.
    """
    with pytest.raises(aiacc.MismatchError) as failure:
        call(hvd.rank() == hvd.size() - 1)
    message = str(failure.value)
    for text in ("odd.one", "rank 0", f"rank {hvd.size() - 1}", *texts):
        assert text in message, f"{text!r} is not in {message!r}"
    total = hvd.allreduce(np.ones(2), name="afterwards", op=hvd.Sum)
    np.testing.assert_array_equal(total, np.full(2, hvd.size()))
    assert hvd.allgather_object(message) == [message] * hvd.size()


ONES = np.ones(6, np.float32)
MATRIX = ONES.reshape(2, 3)


def _reduce(tensor=ONES, **options):
    return hvd.allreduce(tensor, name="odd.one", **options)


def _gather(tensor=ONES):
    return hvd.allgather(tensor, name="odd.one")


_FIELDS = [("a", "i4"), ("b", "f4")]
#: Dtypes of equal size, of which the core moves bytes; each against the next.
_ALIKE = [
    *("M8[D]", "M8[s]", "m8[D]", "V8", "U2", "S8", _FIELDS, _FIELDS[::-1]),
    *(
        [("a", "i4"), ("c", "f4")],
        [("a", "i4", (2,))],
        [("a", "i4", (2, 1))],
        [("a", [("b", "i8")])],
    ),
    {"names": ["a"], "formats": ["i4"], "itemsize": 8},
    {"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 8},
]


def _moves_of(one, other):
    """Calls that move elements of one dtype on the last rank and of the other one elsewhere."""
    first, last = np.zeros(12, other), np.zeros(12, one)
    for move in (
        lambda array: hvd.allgather(array, name="odd.one"),
        lambda array: hvd.broadcast(array, 0, name="odd.one"),
        lambda array: hvd.alltoall(array, name="odd.one"),
        lambda array: hvd.grouped_allgather([ONES, array], name="odd.one"),
    ):
        yield lambda odd, move=move: move(last if odd else first)


#: What differs, with what the message tells of it.
DIFFERENCES = [
    (lambda odd: _reduce(ONES[: 5 if odd else 6]), ("5", "6")),
    (lambda odd: _reduce(ONES.astype("f8" if odd else "f4")), ("float64", "float32")),
    (lambda odd: _reduce(op=hvd.Min if odd else hvd.Max), ("Min", "Max")),
    (lambda odd: _reduce(op=hvd.Sum, prescale_factor=2.0 if odd else 1.0), ("prescale",)),
    (lambda odd: hvd.broadcast(ONES, int(odd), name="odd.one"), ("root",)),
    (lambda odd: _gather(ONES if odd else MATRIX), ("shape",)),
    (lambda odd: _gather(MATRIX.reshape(3, 2) if odd else MATRIX), ("shape",)),
]
#: One name for several kinds of operations.
KINDS = [
    _reduce,
    _gather,
    lambda: hvd.grouped_allreduce([ONES], name="odd.one"),
    lambda: hvd.broadcast(ONES, 0, name="odd.one"),
]


@on_ranks(*TWO_AND_THREE)
def test_disagreement_is_an_error_on_every_rank_and_not_fatal():
    for _ in range(2):
        for call, texts in DIFFERENCES:
            _disagree(call, *texts)
        # Elements that look like others as soon as their dimensions count.
        for pair in [*itertools.pairwise(_ALIKE), ("V8", "(8,1)u1"), ("c8", "(2,1)f4")]:
            for call in _moves_of(*pair):
                _disagree(call)
        # Names that were fine (and are cached) may go wrong later, and be fine again.
        for call in KINDS * 2:
            call()
        np.testing.assert_array_equal(_reduce(), ONES)
        np.testing.assert_array_equal(_reduce(ONES[:2]), ONES[:2])
    # Of several kinds in any order is fine.
    reduced = [
        lambda: hvd.allreduce_async(ONES, name="both", op=hvd.Sum),
        lambda: hvd.allgather_async(ONES, name="both"),
    ]
    order = 1 if hvd.rank() == 0 else -1
    handles = [submit() for submit in reduced[::order]]
    shapes = [hvd.synchronize(handle).shape for handle in handles[::order]]
    assert shapes == [(6,), (6 * hvd.size(),)]


@on_ranks(*TWO_AND_THREE, env={"AIACC_STALL_FAIL_S": "1"})
def test_different_operations_wait_until_the_limit_and_say_for_what():
    for name in ("x", None):
        hvd.barrier()
        with pytest.raises(aiacc.CollectiveTimeoutError) as failure:
            (hvd.allreduce if hvd.rank() == 0 else hvd.allgather)(ONES, name=name)
        called = rf"\.{name or 'noname.0.0'}'"
        said = rf"'(\w+){called} has waited .*have submitted it; rank.* wait for '(\w+){called}"
        kinds = re.search(said, str(failure.value))
        assert kinds, failure.value
        assert {*kinds.groups()} == {"allreduce", "allgather"}
        hvd.shutdown()
        hvd.init()


@in_job
def _wait_for_what_no_other_rank_submits():
    start = time.monotonic()
    hvd.barrier()
    hvd.allreduce_async(ONES, name=f"t{hvd.rank()}")
    time.sleep(2)
    return time.monotonic() - start


@pytest.mark.parametrize("size", [2, 4])
def test_a_job_reports_what_waits_once_in_a_period(size, capfd):
    env = {"AIACC_STALL_WARN_S": "0.4"}
    took = max(run_ranks(size, _wait_for_what_no_other_rank_submits, env=env))
    reports = re.findall(r".*\[stall\].*", capfd.readouterr().err)
    assert 2 <= len(reports) <= took / 0.4
    for report in reports[1:]:
        said = re.findall(r"'allreduce\.t(\d)' has waited .*? s for rank", report)
        assert sorted(map(int, said)) == [*range(size)], report
        assert " rank 0 warning] " in report


# --- AIACC_CHECK_FINITE

VALUES = {"NaN": np.nan, "infinity": -np.inf}


def _all_reduced(tensors):
    return [hvd.allreduce_async(x, name=name, op=hvd.Sum) for name, x in tensors.items()]


@in_job
def _give_what_is_not_finite(raises):
    """Rank 1 does, among others. The errors there are, if there shall be any."""
    texts = []
    for what, value in VALUES.items():
        tensors = {name: np.ones(7, np.float32) for name in ("a", what, "c")}
        if hvd.rank() == 1:
            tensors[what][6] = value
        for _ in range(1 if raises else 3):
            if raises:
                # Whoever submits after the error has come is told at once.
                with pytest.raises(aiacc.CollectiveError) as caught:
                    [hvd.synchronize(handle) for handle in _all_reduced(tensors)]
                with pytest.raises(aiacc.CollectiveError) as later:
                    hvd.barrier()
                assert str(later.value) == str(caught.value)
                texts.append(str(caught.value))
                hvd.shutdown()
                hvd.init()
                continue
            a, b, c = map(hvd.synchronize, _all_reduced(tensors))
            assert (a == hvd.size()).all()
            assert (c == hvd.size()).all()
            assert not np.isfinite(b[6])
            part = hvd.reducescatter(tensors[what], name=what, op=hvd.Sum)
            assert np.isfinite(part).all() == (hvd.rank() < hvd.size() - 1)
    return texts


@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_not_finite_is_a_warning_once_on_the_rank_that_gave_it_or_nothing(size, capfd):
    run_ranks(size, _give_what_is_not_finite, False, env={"AIACC_CHECK_FINITE": "warn"})
    lines = [line for line in capfd.readouterr().err.splitlines() if "[finite]" in line]
    told = [(what, kind) for what in VALUES for kind in ("allreduce", "reducescatter")]
    for line, (what, kind) in zip(lines, told, strict=True):
        text = f"{kind} '{kind}.{what}': rank 1 gave {what} (float32"
        assert f"rank 1 warning] [finite] {text}" in line
    run_ranks(size, _give_what_is_not_finite, False)
    assert "[finite]" not in capfd.readouterr().err


@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_not_finite_is_an_error_on_every_rank(size):
    raise_it = {"AIACC_CHECK_FINITE": "raise"}
    texts, *others = run_ranks(size, _give_what_is_not_finite, True, env=raise_it)
    assert others == [texts] * (size - 1)
    for text, what in zip(texts, VALUES, strict=True):
        assert f"allreduce 'allreduce.{what}': rank 1 gave {what} (float32" in text
