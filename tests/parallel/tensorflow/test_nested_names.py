"""Names of nodes in functions that other functions call, on two ranks."""

from __future__ import annotations

import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.parallel.tensorflow.test_ops import SIZE
from tests.support.ranks import run_ranks

#: What is tested hangs without it.
TIMEOUT_S = 110.0
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2"}
STEPS = 5


def _run(function):
    run_ranks(SIZE, function, timeout=TIMEOUT_S, env=ENV)


def _total(value, name=None):
    return hvd.allreduce(value, op=hvd.Sum, name=name)


@tf.function
def _plain(x):
    return 2.0 * x


@tf.function
def _with_side_effect(x):
    tf.print("x", x, output_stream="file:///dev/null")
    return tf.while_loop(lambda y: y < 3.0, lambda y: (_plain(y) + 1.0,), (x,))[0]


def _on_rank_0(x):
    """Calls, a loop and a branch that the other rank lacks."""
    if hvd.rank() == 0:
        _plain(x)
        _with_side_effect(x)
        tf.cond(x > 100.0, lambda: _with_side_effect(x), lambda: x)
        tf.while_loop(lambda y: y < 3.0, lambda y: (_plain(y) + 1.0,), (x,))


def _calls_on_one_rank():
    hvd.init()

    @tf.function
    def leaf(x):
        _on_rank_0(x)
        return _total(x)

    @tf.function
    def branch(x):
        _on_rank_0(x)
        return tf.cond(x < 100.0, lambda: leaf(x), lambda: x)

    @tf.function
    def loop(x):
        _on_rank_0(x)
        for _ in tf.range(3):
            x = leaf(x)
        return x

    @tf.function
    def loop_of_its_own(x):
        _on_rank_0(x)
        for _ in tf.range(3):
            x = _total(x)
        return x

    @tf.function
    def rows(dataset):
        total = tf.constant(0.0)
        for x in dataset:
            total += leaf(x)
        return total

    @tf.function
    def outer(x):
        _on_rank_0(x)
        first = leaf(x)
        _on_rank_0(x)
        return first, leaf(2.0 * x), branch(3.0 * x), loop(4.0 * x), loop_of_its_own(5.0 * x)

    @tf.function
    def outermost(x):
        _on_rank_0(x)
        return outer(x), outer(-x)

    one = tf.constant(1.0)
    expected = [2.0, 4.0, 6.0, 32.0, 40.0]
    for _ in range(STEPS):
        assert [float(total) for total in outer(one)] == expected
        first, second = outermost(one)
        assert [float(total) for total in first] == expected
        assert [float(total) for total in second] == [-total for total in expected]
        assert float(rows(tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]))) == 12.0
    hvd.shutdown()


def test_calls_that_one_rank_alone_has():
    _run(_calls_on_one_rank)


def _gradients():
    hvd.init()

    @tf.function
    def square(x):
        _on_rank_0(x)
        return _total(x * x)

    @tf.function
    def power(x):
        _on_rank_0(x)
        for _ in tf.range(2):
            x = square(x)
        return x

    @tf.function
    def first_order(x):
        _on_rank_0(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            _on_rank_0(x)
            y = square(x) + 10.0 * square(2.0 * x)
        return tape.gradient(y, x)

    @tf.function
    def of_a_loop(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _on_rank_0(x)
            y = power(x)
        return tape.gradient(y, x)

    @tf.function
    def several(x):
        _on_rank_0(x)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = square(x)
            losses = [y * i for i in range(1, 21)]
        return [tape.gradient(loss, x) for loss in losses]

    @tf.function
    def symbolic(x):
        y = square(x)
        _on_rank_0(x)
        return tf.gradients(y, x)[0], tf.gradients(3.0 * y, x)[0]

    @tf.function
    def second_order(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = square(x)
            first = inner.gradient(y, x)
            _on_rank_0(x)
        return first, outer.gradient(first, x)

    one = tf.constant(1.0)
    for _ in range(STEPS):
        assert float(first_order(one)) == 4.0 + 10.0 * 16.0
        assert float(of_a_loop(one)) == 32.0
        assert [float(grad) for grad in several(one)] == [4.0 * i for i in range(1, 21)]
        assert [float(grad) for grad in symbolic(one)] == [4.0, 12.0]
        assert [float(grad) for grad in second_order(one)] == [4.0, 4.0]
        with tf.GradientTape() as tape:
            tape.watch(one)
            y = power(one)
        assert float(tape.gradient(y, one)) == 32.0
    hvd.shutdown()


def test_gradients_of_functions_that_are_called():
    _run(_gradients)


def _retraced():
    hvd.init()

    @tf.function
    def leaf(x):
        return tf.reduce_sum(_total(x))

    @tf.function
    def outer(x):
        return leaf(x) + leaf(2.0 * x)

    if hvd.rank() == 0:  # traced by itself, and for another size
        leaf.get_concrete_function(tf.zeros([3]))
        outer.get_concrete_function(tf.zeros([3]))
    for _ in range(STEPS):
        assert float(outer(tf.ones([2]))) == 12.0
    hvd.shutdown()


def test_functions_that_one_rank_has_traced_more_often():
    _run(_retraced)


def _names():
    hvd.init()

    @tf.function
    def named(x):
        return _total(x, name="loss") + _total(10.0 * x, name="loss")

    @tf.function
    def other(x):
        return _total(100.0 * x, name="loss")

    @tf.function
    def pair(x):
        return named(x) + named(2.0 * x) + other(x)

    @tf.function
    def outer(x):
        return [_total(x, name="loss"), pair(x), pair(-x), *[named(x * i) for i in range(1, 11)]]

    @tf.function
    def either(x):  # each rank takes another branch, and they meet
        return tf.cond(x > 0.0, lambda: named(x), lambda: named(x))

    @tf.function
    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = named(x)
            twice = 2.0 * y
        return tape.gradient(y, x), tape.gradient(twice, x)

    x = tf.constant(1.0)
    for _ in range(STEPS):
        expected = [2.0, 266.0, -266.0, *[22.0 * i for i in range(1, 11)]]
        assert [float(total) for total in outer(x)] == expected
        assert float(either(tf.constant(float(hvd.rank())))) == 11.0
        assert [float(grad) for grad in gradients(x)] == [22.0, 44.0]
    hvd.shutdown()


def test_a_function_that_gives_names_is_called_twice_at_once():
    _run(_names)


def _loops():
    hvd.init()

    @tf.function
    def loops(x):
        _on_rank_0(x)
        for _ in tf.range(20):
            x += _total(x) / 2.0
        y = x
        for _ in tf.range(3):
            y = _total(y, name="y")
        return x, y, _total(x, name="y")

    one = tf.constant(1.0)
    for _ in range(STEPS):
        assert [float(total) for total in loops(one)] == [2.0**20, 2.0**23, 2.0**21]
    hvd.shutdown()


def test_loops_that_one_rank_alone_has():
    _run(_loops)


def _session():
    hvd.init()
    with tf.Graph().as_default():

        @tf.function
        def leaf(x):
            return _total(x)

        x = tf.constant(1.0)
        _on_rank_0(x)
        totals = [leaf(x), leaf(2.0 * x)]
        with tf.compat.v1.Session() as session:
            for _ in range(STEPS):
                assert session.run(totals) == [2.0, 4.0]
    hvd.shutdown()


def test_functions_that_a_graph_of_a_session_calls():
    _run(_session)
