"""Nodes of functions meet by names that do not depend on what else a rank has, on two ranks."""

from __future__ import annotations

import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.parallel.tensorflow.test_ops import SIZE
from tests.support.ranks import run_ranks

#: What is tested hangs without it.
TIMEOUT_S = 110.0
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def _run(function):
    run_ranks(SIZE, function, timeout=TIMEOUT_S, env=ENV)


def _total(value, name=None):
    return hvd.allreduce(value, op=hvd.Sum, name=name)


def _alike_on_one_rank():
    hvd.init()
    first, second = (1.0, 1.0) if hvd.rank() == 0 else (2.0, 3.0)

    @tf.function
    def constants():
        return _total(tf.constant(first)), _total(tf.constant(second))

    @tf.function
    def inputs(x):
        other = x if hvd.rank() == 0 else x * 2.0
        return hvd.allgather(x), hvd.allgather(other)

    assert [float(total) for total in constants()] == [3.0, 4.0]
    everyones, others = inputs(tf.constant([1.0]))
    assert everyones.numpy().tolist() == [1.0, 1.0]
    assert others.numpy().tolist() == [1.0, 2.0]
    hvd.shutdown()


def test_two_that_are_equal_on_one_rank_alone():
    _run(_alike_on_one_rank)


def _more_on_one_rank():
    hvd.init()

    def on_rank_0(x):  # as a summary is, too
        if hvd.rank() == 0:
            tf.cond(x > 100.0, lambda: tf.print("large"), lambda: tf.no_op())

    @tf.function
    def direct(x):
        on_rank_0(x)
        return _total(x)

    @tf.function
    def branch(x):
        on_rank_0(x)
        if x < 100.0:
            x = _total(x)
        if x < 200.0:
            x = _total(x)
        return x

    @tf.function
    def loop(x):
        on_rank_0(x)
        for _ in tf.range(3):
            x = _total(x)
            if x < 100.0:
                x = _total(x)
        return x

    @tf.function
    def nested(x):
        return direct(x) + direct(2.0 * x) + loop(x)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            on_rank_0(x)
            y = tf.cond(x < 100.0, lambda: _total(x * x), lambda: x)
        return tape.gradient(y, x)

    for function, expected in ((direct, 2), (branch, 4), (loop, 64), (nested, 70), (gradient, 4)):
        assert function(tf.constant(1.0)).numpy() == expected
        if hvd.rank() == 1:  # moves the numbers of this process
            tf.function(lambda x: tf.cond(x < 1.0, lambda: x, lambda: -x))(tf.constant(1.0))
    hvd.shutdown()


def test_branches_on_one_rank_alone():
    _run(_more_on_one_rank)


def _repeated_names():
    hvd.init()
    rank = hvd.rank()

    @tf.function
    def twice(x):
        return [_total(x * i, name="loss") for i in range(1, 21)]

    @tf.function
    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = _total(x, name="y")
            losses = [tf.reduce_sum(y * i) for i in range(1, 21)]
        return [tape.gradient(loss, x) for loss in losses]

    @tf.function
    def either(x):  # each rank takes another branch, and they meet
        return tf.cond(x > 0.0, lambda: _total(x, name="e"), lambda: _total(x * 2.0, name="e"))

    @tf.function
    def around(x):
        inside = tf.cond(x < 100.0, lambda: _total(x, name="a"), lambda: x)
        return inside, _total(x * 2.0, name="a"), _total(x * 3.0, name="a.1")

    x = tf.ones([100000])
    for _ in range(5):
        assert [total[0].numpy() for total in twice(x)] == [2 * i for i in range(1, 21)]
        assert [grad[0].numpy() for grad in gradients(x)] == [2 * i for i in range(1, 21)]
        assert either(tf.constant(float(rank))).numpy() == 1.0
        assert [float(total) for total in around(tf.constant(1.0))] == [2.0, 4.0, 6.0]
    hvd.shutdown()


def test_a_name_that_is_given_again():
    _run(_repeated_names)
