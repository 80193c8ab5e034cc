"""When and by which names the collectives of a `tf.function` travel, on two ranks."""

from __future__ import annotations

import json
import threading

import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks
from tests.support.ranks import run_ranks

ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTEROP_THREADS": "4"}
#: For what hangs without the property that is tested.
DEADLOCK_S = 60.0


@on_ranks(2, env=ENV)
def test_iterations_that_run_at_once_may_have_one_name():
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


def _while_others_are_computed():
    """The gradient of the first layer is ready when that of the last one has been reduced."""
    late_is_reduced = threading.Event()

    def release(gradient):
        late_is_reduced.set()
        return gradient

    def wait_for_late(gradient):
        assert late_is_reduced.wait(DEADLOCK_S), "the all-reduce of the last layer has not started"
        return gradient

    @tf.custom_gradient
    def held_back(x):
        def gradient(upstream):
            return tf.numpy_function(wait_for_late, [upstream], tf.float32, stateful=False)

        return tf.identity(x), gradient

    hvd.init()
    early, late = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(held_back(early * 1.0) * late)
        of_early, of_late = tape.gradient(loss, [early, late])
        return of_early, tf.numpy_function(release, [of_late], tf.float32, stateful=False)

    of_early, of_late = step()
    assert of_early.numpy().tolist() == [3.0, 4.0]
    assert of_late.numpy().tolist() == [1.0, 2.0]
    hvd.shutdown()


def test_a_gradient_travels_while_others_are_computed(tmp_path):
    path = tmp_path / "t.json"
    env = {**ENV, "AIACC_TIMELINE": str(path)}
    run_ranks(2, _while_others_are_computed, env=env)
    for file in (path, tmp_path / "t.rank1.json"):
        events = json.loads(file.read_text())
        first, second = sorted(
            (event for event in events if event.get("cat") == "ALLREDUCE"),
            key=lambda event: event["ts"],
        )
        assert first["ts"] + first["dur"] <= second["ts"]
