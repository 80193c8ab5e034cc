"""Traces of the moments that a compiled step gives, without other ranks."""

from __future__ import annotations

import tensorflow as tf

from aiacc.planning.trace import Tensor, Trace
from aiacc.tensorflow import node, op_library
from aiacc.tensorflow.recorder import Gradient, MomentRecorder, trace_of

GRADIENTS = [Gradient("a", 8, "float32"), Gradient("b", 0, "float16")]


def test_the_forward_pass_ends_with_the_first_gradient():
    trace = trace_of("net", GRADIENTS, [1_000_000_000, 1_500_000_000, 1_250_000_000])
    tensors = Tensor("b", 1, "float16", 0.25, 0.0), Tensor("a", 8, "float32", 0.5, 0.0)
    assert trace == Trace("net", tensors, 0.25, 0.25, "measured")


def test_a_start_that_was_told_late_is_no_later_than_the_first_gradient():
    trace = trace_of("net", GRADIENTS, [1_300_000_000, 1_500_000_000, 1_250_000_000])
    assert (trace.forward_s, trace.backward_s) == (0.0, 0.25)


def test_steps_are_kept_in_their_order():
    recorder = MomentRecorder(GRADIENTS)
    for step in (1, 2):
        recorder.note([0, step * 1_000, step * 2_000])
        recorder.step_done()
    assert recorder.sizes == {"a": 8, "b": 0}
    assert [trace.forward_s for trace in recorder.traces("net")] == [1e-6, 2e-6]


def test_a_moment_comes_after_what_it_waits_for():
    @tf.function
    def moments(value):
        token = node.token_of(tf.compat.v1.get_default_graph())
        moment = op_library.checked().aiacc_moment
        before = moment([value], [token])
        with tf.control_dependencies([before]):
            value = tf.identity(value)
        return before, moment([tf.linalg.matmul(value, value)], [token])

    before, after = moments(tf.ones([64, 64]))
    assert 0 < int(before) < int(after)
