"""Which gradients share a bucket, where they are in it, and when it leaves."""

import copy
import pickle

import pytest
import torch

from aiacc.planning.plan import Plan
from aiacc.torch.parallel import departures
from aiacc.torch.parallel.departures import Departures
from aiacc.torch.reducer.consensus import Forms
from aiacc.torch.reducer.plan import (
    Gradient,
    by_size,
    checked,
    chosen,
    evenly,
    fused,
    fused_from_the_end,
    planned,
    singly,
    together,
)
from aiacc.torch.reducer.storage import flat_buckets, is_dense, lay_out, own_memory, views_pay


def _gradients(*sizes, dtypes=None, device_keys=None):
    """Gradients a, b, c ... of so many float32, or of (dtype, bytes) instead."""
    dtypes = dtypes or [("float32", 4)] * len(sizes)
    rows = zip("abcde", sizes, dtypes, device_keys or [0] * len(sizes), strict=False)
    return [Gradient(name, size, width, dtype, key) for name, size, (dtype, width), key in rows]


def _plan(planner, gradients):
    return [list(bucket) for bucket in planner.divide(gradients)]


_FLOATS_AND_BFLOAT = [("float32", 4), ("bfloat16", 2), ("float32", 4)]
_GIVEN = Plan("given", (("e", "c", "a"), ("d", "gone"), ("b",)))
_SIXTEEN = _gradients(16, 16, 16, 16, 16)
_ON_TWO_DEVICES = _gradients(1, 1, 1, 1, 1, device_keys=[0, 1, 0, 1, 1])

#: (planner, gradients, plan)
PLANS = [
    # Single gradients are in no bucket.
    (singly(), _gradients(1, 2, 3), []),
    # Chosen groups are found by name.
    (chosen([["c", "a"], ["frozen"], ["b", "frozen"]]), _gradients(1, 1, 1, 1), [[2, 0], [], [1]]),
    # A number of groups.
    (evenly(1), _SIXTEEN, [[0, 1, 2, 3, 4]]),
    (evenly(2), _SIXTEEN, [[0, 1, 2], [3, 4]]),
    (evenly(9), _SIXTEEN, [[0], [1], [2], [3], [4]]),
    (evenly(2), [], []),
    # A group or a plan's bucket on several devices is one for each.
    (evenly(1), _ON_TWO_DEVICES[:4], [[0, 2], [1, 3]]),
    (evenly(2), _ON_TWO_DEVICES[:4], [[0], [1], [2], [3]]),
    (planned(_GIVEN), _ON_TWO_DEVICES, [[4], [2, 0], [3], [1]]),
    (together(_GIVEN.buckets), _ON_TWO_DEVICES, [[4], [2, 0], [3], [1]]),
    # A bucket holds what fits, with what is between them; a larger one is alone.
    (by_size(128), _SIXTEEN[:3], [[0, 1], [2]]),
    (by_size(127), _SIXTEEN[:3], [[0], [1], [2]]),
    (by_size(72), _gradients(1, 2, 1), [[0, 1], [2]]),
    (by_size(64), _gradients(1, 100, 1), [[0], [1], [2]]),
    # Empty gradients have a place.
    (by_size(64), _gradients(0, 0), [[0, 1]]),
    (by_size(64), [], []),
    # Types and devices are not mixed, and buckets come in the order of completion.
    (by_size(1 << 20), _gradients(16, 16, 16, dtypes=_FLOATS_AND_BFLOAT), [[1], [0, 2]]),
    (by_size(1 << 20), _gradients(1, 1, 1, device_keys=[1, 0, 1]), [[1], [0, 2]]),
    # Those apart share buckets with one another.
    (by_size(128, ["b", "d", "e"]), _SIXTEEN, [[0, 2], [1, 3], [4]]),
    # Only those that are named are fused.
    (fused(128, ["e", "a", "c"]), _SIXTEEN, [[0, 2], [4]]),
    (fused(1 << 20, []), _SIXTEEN, []),
    (fused(1 << 20, "abc"), _gradients(1, 1, 1, dtypes=_FLOATS_AND_BFLOAT), [[1], [0, 2]]),
    # From the end the last gradients are first.
    (fused_from_the_end(128, "abde"), _SIXTEEN, [[4, 3], [1, 0]]),
]


@pytest.mark.parametrize(("planner", "gradients", "plan"), PLANS)
def test_gradients_that_share_a_bucket(planner, gradients, plan):
    assert _plan(planner, gradients) == plan


@pytest.mark.parametrize("planner", [planner for planner, *_ in PLANS])
def test_planners_are_data(planner):
    for other in (copy.deepcopy(planner), pickle.loads(pickle.dumps(planner))):
        assert (other.order, other.argument) == (planner.order, planner.argument)
        gradients = _gradients(1, 20, 3, 4)
        assert _plan(other, gradients) == _plan(planner, gradients)
    with pytest.raises(AttributeError):
        planner.order = "arrival"


@pytest.mark.parametrize("plan", [[[0, 1], [1]], [[3]], [[-1]], [[0, 0]]])
def test_what_is_no_plan(plan):
    with pytest.raises(
        ValueError, match=r"mine: .*\(expected each of the positions 0 to 2 at most"
    ):
        checked(plan, 3, "mine")
    assert checked([[2], [0]], 3, "mine") == [[2], [0]]  # one may be left out


# --- where they are


def test_views_are_aligned_and_have_the_form_of_their_parameters_in_memory_of_one_kind():
    assert lay_out([3, 17, 1], 4) == ([0, 16, 48], 64)
    assert lay_out([3, 17, 1], 2) == ([0, 32, 64], 96)
    assert lay_out([0, 0], 4) == ([0, 0], 0)
    parameters = [torch.ones(3), torch.ones(2, 3).t(), torch.ones(4, 4)[::2]]
    memory, views = flat_buckets(parameters)
    assert memory.eq(0).all()
    for number, (view, parameter) in enumerate(zip(views, parameters, strict=True)):
        view.fill_(number + 1)
        assert view.shape == parameter.shape
    assert [view.stride() for view in views] == [(1,), (1, 3), (4, 1)]
    assert [memory.eq(number + 1).sum() for number in range(3)] == [3, 6, 8]
    with pytest.raises(ValueError, match=r"float32.*float64.*expected one"):
        flat_buckets([torch.ones(1), torch.ones(1).double()])
    assert own_memory([torch.ones(1), torch.ones(1).double()]) is None


def _form(*ranks):
    return Forms(*ranks).common, Forms(*ranks).mendable


@pytest.mark.parametrize(
    ("decide", "given", "answer"),
    [
        *((is_dense, ((2, 3), strides), True) for strides in ((3, 1), (1, 2))),
        *((is_dense, ((2, 3), strides), False) for strides in ((4, 1), (0, 1))),
        (is_dense, ((2, 3, 4, 5), (60, 1, 15, 3)), True),
        (is_dense, ((2, 1, 3), (3, 77, 1)), True),
        (is_dense, ((), ()), True),
        # Views that are copied to do not pay.
        *((views_pay, counts, True) for counts in ((0, 10), (5, 10), (0, 0))),
        *((views_pay, counts, False) for counts in ((6, 10), (10, 10))),
        # A missing gradient takes the form of others: sparse, their dimensions, dense, missing, and
        # what dimensions it had in the operation that failed, perhaps of another reason.
        (_form, (0, 0, 2, 1, 0), (0, False)),
        (_form, (0, 0, 2, 1, 1), (0, True)),
        (_form, (0, 0, 0, 3, 0), (0, False)),
        (_form, (0, 0, 0, 3, 2), (0, True)),
        (_form, (2, 2, 0, 1, 0), (1, True)),
        (_form, (2, 2, 0, 1, 1), (1, False)),
        (_form, (1, 2, 0, 2, 1), (2, True)),
        (_form, (2, 4, 0, 0, 0), (2, False)),
        *((_form, ranks, (None, False)) for ranks in ((1, 1, 1, 1, 0), (2, 3, 0, 1, 0))),
    ],
)
def test_density_views_and_forms(decide, given, answer):
    assert decide(*given) == answer


# --- when they leave, while a rank computes what is in them


@pytest.fixture
def events(monkeypatch):
    found = []
    monkeypatch.setattr(departures._core, "flush", lambda: found.append("flush"))
    return found


def test_exchanges_leave_when_this_rank_has_its_part(events):
    leaving = Departures([["a", "b"], [], ["c"], ["a"]], events.append)
    assert events == [1, "flush"]
    leaving.computed(["b"])
    assert events == [1, "flush"]
    leaving.computed(["a"])
    assert events == [1, "flush", 0, 3, "flush"]
    leaving.computed(["c"])
    leaving.give_up()
    assert events == [1, "flush", 0, 3, "flush", 2, "flush"]
    # All leave where something fails, for others wait.
    events.clear()
    leaving = Departures([["a"], ["b"]], events.append)
    leaving.computed(["b"])
    leaving.give_up()
    assert events == [1, "flush", 0, "flush"]
