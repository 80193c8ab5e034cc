"""Which gradients share a bucket, and where they are in it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from aiacc.planning.plan import Plan
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
    return [
        Gradient(
            chr(ord("a") + number),
            size,
            (dtypes[number] if dtypes else ("float32", 4))[1],
            (dtypes[number] if dtypes else ("float32", 4))[0],
            device_keys[number] if device_keys else 0,
        )
        for number, size in enumerate(sizes)
    ]


def _plan(planner, gradients):
    return [list(bucket) for bucket in planner.divide(gradients)]


def test_single_gradients_are_in_no_bucket():
    assert _plan(singly(), _gradients(1, 2, 3)) == []


def test_chosen_groups_are_found_by_name():
    planner = chosen([["c", "a"], ["frozen"], ["b", "frozen"]])
    assert _plan(planner, _gradients(1, 1, 1, 1)) == [[2, 0], [], [1]]


@pytest.mark.parametrize(
    ("groups", "plan"),
    [
        (1, [[0, 1, 2, 3, 4]]),
        (2, [[0, 1, 2], [3, 4]]),
        (3, [[0, 1], [2, 3], [4]]),
        (9, [[0], [1], [2], [3], [4]]),
    ],
)
def test_a_number_of_groups(groups, plan):
    assert _plan(evenly(groups), _gradients(1, 1, 1, 1, 1)) == plan


def test_a_group_on_several_devices_is_one_for_each():
    gradients = _gradients(1, 1, 1, 1, device_keys=[0, 1, 0, 1])
    assert _plan(evenly(1), gradients) == [[0, 2], [1, 3]]
    assert _plan(evenly(2), gradients) == [[0], [1], [2], [3]]


def test_a_plan_s_bucket_on_several_devices_is_one_for_each():
    gradients = _gradients(1, 1, 1, 1, 1, device_keys=[0, 1, 0, 1, 1])
    plan = Plan("given", (("e", "c", "a"), ("d", "gone"), ("b",)))
    assert _plan(planned(plan), gradients) == [[4], [2, 0], [3], [1]]
    assert _plan(together(plan.buckets), gradients) == [[4], [2, 0], [3], [1]]


def test_a_bucket_holds_what_fits():
    assert _plan(by_size(128), _gradients(16, 16, 16)) == [[0, 1], [2]]
    assert _plan(by_size(127), _gradients(16, 16, 16)) == [[0], [1], [2]]
    assert _plan(by_size(72), _gradients(1, 2, 1)) == [[0, 1], [2]]  # with what is between them


def test_a_larger_one_is_alone():
    assert _plan(by_size(64), _gradients(1, 100, 1)) == [[0], [1], [2]]


def test_types_are_not_mixed_and_buckets_come_in_the_order_of_completion():
    dtypes = [("float32", 4), ("bfloat16", 2), ("float32", 4)]
    assert _plan(by_size(1 << 20), _gradients(16, 16, 16, dtypes=dtypes)) == [[1], [0, 2]]
    assert _plan(by_size(1 << 20), _gradients(1, 1, 1, device_keys=[1, 0, 1])) == [[1], [0, 2]]


def test_those_apart_share_buckets_with_one_another():
    gradients = _gradients(16, 16, 16, 16, 16)
    assert _plan(by_size(1 << 20, ["b", "d"]), gradients) == [[1, 3], [0, 2, 4]]
    assert _plan(by_size(128, ["b", "d", "e"]), gradients) == [[0, 2], [1, 3], [4]]
    assert _plan(by_size(1 << 20, ["nobody"]), gradients) == [[0, 1, 2, 3, 4]]


def test_only_those_that_are_named_are_fused():
    gradients = _gradients(16, 16, 16, 16, 16)
    assert _plan(fused(1 << 20, ["e", "a", "c"]), gradients) == [[0, 2, 4]]
    assert _plan(fused(128, ["e", "a", "c"]), gradients) == [[0, 2], [4]]
    assert _plan(fused(1 << 20, []), gradients) == []
    kinds = [("float32", 4), ("bfloat16", 2), ("float32", 4)]
    assert _plan(fused(1 << 20, "abc"), _gradients(1, 1, 1, dtypes=kinds)) == [[1], [0, 2]]


def test_from_the_end_the_last_gradients_are_first():
    gradients = _gradients(16, 16, 16, 16, 16)
    assert _plan(fused_from_the_end(128, "abde"), gradients) == [[4, 3], [1, 0]]


def test_empty_gradients_have_a_place():
    assert _plan(by_size(64), _gradients(0, 0)) == [[0, 1]]
    assert _plan(by_size(64), []) == []
    assert _plan(evenly(2), []) == []


@pytest.mark.parametrize(
    "planner",
    [
        singly(),
        chosen([["a"]]),
        evenly(3),
        by_size(64),
        by_size(64, ["b"]),
        fused(64, ["b", "c"]),
        fused_from_the_end(64, ["b", "c"]),
        planned(Plan("given", (("a", "b"),))),
        together([["a", "b"]]),
    ],
)
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


def test_a_plan_may_leave_gradients_out():
    assert checked([[2], [0]], 3, "mine") == [[2], [0]]


# --- where they are


def test_offsets_are_aligned():
    assert lay_out([3, 17, 1], 4) == ([0, 16, 48], 64)
    assert lay_out([3, 17, 1], 2) == ([0, 32, 64], 96)
    assert lay_out([0, 0], 4) == ([0, 0], 0)


def test_views_have_the_form_of_their_parameters():
    parameters = [torch.ones(3), torch.ones(2, 3).t(), torch.ones(4, 4)[::2]]
    memory, views = flat_buckets(parameters)
    assert memory.eq(0).all()
    for number, (view, parameter) in enumerate(zip(views, parameters, strict=True)):
        view.fill_(number + 1)
        assert view.shape == parameter.shape
    assert [view.stride() for view in views] == [(1,), (1, 3), (4, 1)]
    assert [memory.eq(number + 1).sum() for number in range(3)] == [3, 6, 8]


def test_a_flat_bucket_is_of_one_kind():
    with pytest.raises(ValueError, match=r"float32.*float64.*expected one"):
        flat_buckets([torch.ones(1), torch.ones(1).double()])


def test_own_memory_is_left_alone():
    assert own_memory([torch.ones(1), torch.ones(1).double()]) is None


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3, 4, 5), (60, 1, 15, 3), True),
        ((2, 1, 3), (3, 77, 1), True),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((), (), True),
    ],
)
def test_density(shape, strides, dense):
    assert is_dense(shape, strides) is dense


@pytest.mark.parametrize(
    ("copied", "elements", "pay"),
    [(0, 10, True), (5, 10, True), (6, 10, False), (10, 10, False), (0, 0, True)],
)
def test_views_that_are_copied_to_do_not_pay(copied, elements, pay):
    assert views_pay(copied, elements) is pay
