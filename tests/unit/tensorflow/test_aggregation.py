"""Gradients of several passes that are added up before they travel."""

from __future__ import annotations

import tensorflow as tf

from aiacc.tensorflow.keras.aggregation import LocalAggregation

ONE = tf.constant([1.0])


class _Updates(list):
    """Sums that were handed on."""

    def __call__(self, sums):
        self.append([None if total is None else total.numpy().tolist() for total in sums])


def _run(aggregation, calls):
    """Updates that these calls, pairs of gradients and variables, lead to."""
    updates = _Updates()
    for grads, variables in calls:
        aggregation.run(grads, variables, updates)
    return updates


def _variables():
    return tf.Variable([0.0]), tf.Variable([0.0])


def test_a_gradient_that_comes_later_is_not_lost():
    both = _variables()
    passes = [[ONE, None], [ONE, None], [ONE, ONE], [ONE, None]]
    updates = _run(LocalAggregation(2, average=False), [(grads, both) for grads in passes])
    assert updates == [[[2.0], None], [[2.0], [1.0]]]


def test_a_gradient_that_stops_adds_nothing():
    both = _variables()
    passes = [[ONE, ONE], [ONE, None]]
    updates = _run(LocalAggregation(2, average=True), [(grads, both) for grads in passes])
    assert updates == [[[1.0], [0.5]]]


def test_parts_of_a_model_in_turn_are_added_up_apart():
    first, second = _variables()
    calls = [([ONE], [first]), ([10 * ONE], [second])] * 2
    assert _run(LocalAggregation(2, average=False), calls) == [[[2.0]], [[20.0]]]


def test_gradients_of_unknown_shape():
    variable = tf.Variable([0.0, 0.0])
    total = tf.Variable([0.0, 0.0])
    aggregation = LocalAggregation(2, average=False)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(grad):
        aggregation.run([grad], [variable], lambda sums: total.assign(sums[0]))

    step(tf.constant([1.0, 2.0]))
    assert total.numpy().tolist() == [0.0, 0.0]
    step(tf.constant([1.0, 2.0]))
    assert total.numpy().tolist() == [2.0, 4.0]
