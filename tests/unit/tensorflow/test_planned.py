"""How the gradients of TensorFlow follow a plan, without other ranks."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

import aiacc.keras as for_keras
import aiacc.tensorflow as hvd
from aiacc.planning.plan import Plan
from aiacc.tensorflow.planned import Division, divided, names_of

PLAN = Plan("mine", (("d", "c"), ("b", "a")))


def test_a_bucket_without_all_its_dense_gradients_is_none():
    names = ["a", "b", "c", "d"]
    assert divided(PLAN, names, [0, 1, 3], ()) == Division([[1, 0], [3]], ["c"], [])
    assert divided(PLAN, names, range(4), {0}) == Division([[3, 2], [0], [1]], ["a"], [])
    assert divided(PLAN, names, [], ()) == Division([], ["d", "b"], [])


def test_variables_are_called_by_their_paths_or_names_and_numbered():
    dense = keras.layers.Dense(1, name="last")
    dense.build([None, 2])
    assert names_of(dense.trainable_weights) == ["last/kernel", "last/bias"]
    plain = [tf.Variable([1.0]) for _ in range(3)]
    assert names_of(plain) == ["Variable:0", "Variable:0#2", "Variable:0#3"]
    assert names_of([SimpleNamespace(name="x:0"), plain[0]]) == ["x:0", "Variable:0"]


@pytest.mark.parametrize("distribute", [hvd.DistributedOptimizer, for_keras.DistributedOptimizer])
def test_plans_that_cannot_be_followed(distribute):
    optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="plan and groups are given"):
        distribute(optimizer, groups=2, plan=PLAN)
    with pytest.raises(ValueError, match=r"plan='auto' \(expected a Plan: .*makes none"):
        distribute(optimizer, plan="auto")
    with pytest.raises(ValueError, match="plan with schedule 'decoupled'"):
        distribute(optimizer, plan=Plan("x", PLAN.buckets, schedule="decoupled"))


def test_optimizers_of_sessions_take_no_plan():
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match=r"plan with an optimizer of tf\.compat\.v1\.train"):
        hvd.DistributedOptimizer(optimizer, plan=PLAN)
