"""Nodes of functions meet by names that do not depend on what else a rank has, on two ranks."""

import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks

STEPS = 5
MANY = range(1, 21)


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
    """Calls, a loop and branches that the other rank lacks, as a summary has them, too."""
    if hvd.rank() == 0:
        _plain(x)
        _with_side_effect(x)
        tf.cond(x > 100.0, lambda: tf.print("large"), lambda: tf.no_op())
        tf.cond(x > 100.0, lambda: _with_side_effect(x), lambda: x)
        tf.while_loop(lambda y: y < 3.0, lambda y: (_plain(y) + 1.0,), (x,))


def _more_on_rank_0(function):
    """A `tf.function` that begins with more on one rank."""

    def more(x):
        _on_rank_0(x)
        return function(x)

    more.__name__ = function.__name__
    return tf.function(more)


@on_ranks(3)
def test_in_process_sets_of_which_others_lack_some():
    """Rank 0 has the nodes and calls of two sets in one function."""
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [0, 2])]
    mine = [process_set for process_set in sets if process_set.included()]

    def reduce(x, process_set, name=None):
        return hvd.allreduce(x, op=hvd.Sum, name=name, process_set=process_set)

    leaves = [tf.function(lambda x, s=s: reduce(x, s)) for s in mine]

    @tf.function
    def nodes(x):
        named = [reduce(x, process_set, "loss") for process_set in mine]
        return named, [reduce(x, process_set) for process_set in mine], [leaf(x) for leaf in leaves]

    for _ in range(STEPS):
        found = tf.nest.flatten(nodes(tf.constant(1.0)))
        assert [value.numpy() for value in found] == [2] * 3 * len(mine)
    hvd.barrier()  # rank 1 is done, or rank 2, while the others are not


def _alike():
    """Two nodes that TensorFlow may take for one, and functions traced for another size, there."""
    first, second = (1.0, 1.0) if hvd.rank() == 0 else (2.0, 3.0)

    @tf.function
    def constants(x):
        return _total(tf.constant(first)), _total(tf.constant(second))

    @tf.function
    def inputs(x):
        other = x if hvd.rank() == 0 else x * 2.0
        return [tf.unstack(hvd.allgather(rows), 2) for rows in (x, other)]

    @tf.function
    def leaf(x):
        return tf.reduce_sum(_total(x))

    @tf.function
    def outer(x):
        return leaf(x) + leaf(2.0 * x)

    if hvd.rank() == 0:
        leaf.get_concrete_function(tf.zeros([3]))
        outer.get_concrete_function(tf.zeros([3]))
    one = tf.constant([1.0])
    yield constants, one, [3, 4]
    yield inputs, one, [1, 1, 1, 2]
    yield outer, tf.ones([2]), [12]


def _more():
    """Branches, loops and calls that one rank alone has, around and in functions."""

    @_more_on_rank_0
    def leaf(x):
        return _total(x)

    @_more_on_rank_0
    def branch(x):
        return tf.cond(x < 100.0, lambda: leaf(x), lambda: x)

    @_more_on_rank_0
    def two_branches(x):
        if x < 100.0:
            x = _total(x)
        if x < 200.0:
            x = _total(x)
        return x

    @_more_on_rank_0
    def loop(x):
        for _ in tf.range(3):
            x = leaf(x)
        return x

    @_more_on_rank_0
    def loop_of_its_own(x):
        for _ in tf.range(3):
            x = _total(x)
            if x < 100.0:
                x = _total(x)
        return x

    @tf.function
    def rows(x):
        total = tf.constant(0.0)
        for row in tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]):
            total += leaf(row * x)
        return total

    @_more_on_rank_0
    def outer(x):
        first = leaf(x)
        _on_rank_0(x)
        loops = loop(4.0 * x), loop_of_its_own(x)
        return first, leaf(2.0 * x), branch(3.0 * x), *loops, two_branches(x)

    @_more_on_rank_0
    def outermost(x):
        return outer(x), outer(-x)

    @_more_on_rank_0
    def many_loops(x):
        for _ in tf.range(20):
            x += _total(x) / 2.0
        y = x
        for _ in tf.range(3):
            y = _total(y, name="y")
        return x, y, _total(x, name="y")

    one = tf.constant(1.0)
    expected = [2, 4, 6, 32, 64, 4]
    yield outermost, one, [*expected, *(-number for number in expected)]
    yield rows, one, [12]
    yield many_loops, one, [2**20, 2**23, 2**21]
    with tf.Graph().as_default():  # of a session
        x = tf.constant(1.0)
        _on_rank_0(x)
        totals, session = [leaf(x), leaf(2.0 * x)], tf.compat.v1.Session()
    yield session.run, totals, [2, 4]
    session.close()


def _gradients():
    """Of functions that are called, whatever one rank has beside them."""

    @_more_on_rank_0
    def square(x):
        return _total(x * x)

    @_more_on_rank_0
    def power(x):
        for _ in tf.range(2):
            x = square(x)
        return x

    def in_a_branch(x):
        return tf.cond(x < 100.0, lambda: _total(x * x), lambda: x)

    def first_order(call):
        @_more_on_rank_0
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                _on_rank_0(x)
                y = call(x)
            return tape.gradient(y, x)

        return gradient

    @_more_on_rank_0
    def several(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = square(x)
            losses = [y * i for i in MANY]
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

    def at_once(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = power(x)
        return tape.gradient(y, x)

    one = tf.constant(1.0)
    yield first_order(in_a_branch), one, [4]
    yield first_order(lambda x: square(x) + 10.0 * square(2.0 * x)), one, [164]
    yield first_order(power), one, [32]
    yield several, one, [4 * i for i in MANY]
    yield symbolic, one, [4, 12]
    yield second_order, one, [4, 4]
    yield at_once, one, [32]


def _given():
    """Names that are given again, in a function and in those that it calls."""

    @tf.function
    def twice(x):
        return [_total(x * i, name="loss") for i in MANY]

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
        return [_total(x, name="loss"), pair(x), pair(-x), *[named(x * i) for i in MANY[:10]]]

    @tf.function
    def either(x):  # each rank takes another branch, and they meet
        direct = tf.cond(x > 0.0, lambda: _total(x, name="e"), lambda: _total(x * 2.0, name="e"))
        return direct, tf.cond(x > 0.0, lambda: named(x), lambda: named(x))

    @tf.function
    def around(x):
        inside = tf.cond(x < 100.0, lambda: _total(x, name="a"), lambda: x)
        return inside, _total(x * 2.0, name="a"), _total(x * 3.0, name="a.1")

    @tf.function
    def gradients_of(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, z = _total(x, name="y"), named(x)
            losses = [tf.reduce_sum(y * i) for i in MANY]
            of_named = [z, 2.0 * z]
        return [tape.gradient(loss, x) for loss in (*losses, *of_named)]

    one, large = tf.constant(1.0), tf.ones([100_000])
    yield twice, large, [2 * i for i in MANY]
    yield outer, one, [2, 266, -266, *[22 * i for i in MANY[:10]]]
    yield either, tf.constant(float(hvd.rank())), [1, 11]
    yield around, one, [2, 4, 6]
    yield gradients_of, large, [*[2 * i for i in MANY], 22, 44]


#: With as many threads as TensorFlow takes by itself.
@on_ranks(2, each={"cases": [_alike, _more, _gradients, _given]})
def test_whatever_else_a_rank_has(cases):
    for function, x, expected in cases():
        for _ in range(STEPS):
            found = [float(tf.reshape(value, [-1])[0]) for value in tf.nest.flatten(function(x))]
            assert found == expected
            if hvd.rank() == 1:  # it traces other functions in between
                tf.function(lambda x: tf.cond(x < 1.0, lambda: x, lambda: -x))(tf.constant(1.0))
