"""When and by which names the collectives of a `tf.function` travel, on two ranks."""

from __future__ import annotations

import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.ranks import run_ranks

SIZE = 2
TIMEOUT_S = 110.0
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def _names_in_loops():
    hvd.init()

    @tf.function
    def together(start):  # nothing makes an iteration wait for the one before
        def body(i, totals):
            value = tf.cast(i, tf.float32) + start
            total = hvd.allreduce(value, op=hvd.Sum, name="in.loop")
            return i + 1, totals.write(i, total)

        totals = tf.TensorArray(tf.float32, size=40, element_shape=[])
        _, totals = tf.while_loop(
            lambda i, _: i < 40, body, (0, totals), parallel_iterations=16, maximum_iterations=40
        )
        return totals.stack()

    for start in (0.0, 5.0):
        rank = hvd.rank()
        sums = together(tf.constant(start + rank))
        assert sums.numpy().tolist() == [2 * (i + start) + 1 for i in range(40)]
    hvd.shutdown()


def test_iterations_that_run_at_once_may_have_one_name():
    run_ranks(SIZE, _names_in_loops, timeout=TIMEOUT_S, env=ENV)
