"""Graphs and sessions of `tf.compat.v1`, on two ranks."""

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import ENV, RANKS, in_tensorflow

v1 = tf.compat.v1


@in_tensorflow
def test_optimizer_and_hook():
    rank = hvd.rank()
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.constant([1.0 + rank, 2.0 + rank]))
        rows = v1.get_variable("rows", initializer=tf.zeros([3, 1]) + rank, use_resource=False)
        local = v1.get_variable("local", initializer=0.0)
        factor = v1.placeholder(tf.float32, [])
        loss = tf.reduce_sum(weight) * factor + tf.reduce_sum(tf.gather(rows, [rank])) + local
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.5))
        assert isinstance(optimizer, v1.train.Optimizer)
        optimizer.register_local_var(local)
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        assert optimizer.get_slot_names() == ["momentum"]
        assert len(optimizer.variables()) == 3
        assert optimizer.get_slot(weight, "momentum") is not None

        hook = hvd.BroadcastGlobalVariablesHook(1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(weight).tolist() == [2.0, 3.0]
            for _ in range(2):  # the mean of 1 and 3
                session.run(train, {factor: 1.0 + 2 * rank})
            found = session.run([weight, rows, local, step])
    assert found[3] == 2
    np.testing.assert_allclose(found[0], np.array([2.0, 3.0]) - 0.2 * 2.5, rtol=1e-6)
    np.testing.assert_allclose(found[1][:, 0], 1.0 - 0.05 * np.array([2.5, 2.5, 0]), rtol=1e-6)
    np.testing.assert_allclose(found[2], -0.05 * 2.5, rtol=1e-6)  # divided by the ranks


@on_ranks(RANKS, env=ENV, each={"average": [False, True]})
def test_several_passes_for_a_step(average):
    rank = hvd.rank()
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.constant([1.0, 2.0]))
        rows = v1.get_variable("rows", initializer=tf.zeros([2, 1]))
        local = v1.get_variable("local", initializer=0.0)
        unused = v1.get_variable("unused", initializer=7.0)
        factor = v1.placeholder(tf.float32, [])
        loss = factor * (tf.reduce_sum(weight) + tf.reduce_sum(tf.gather(rows, [rank])) + local)
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(1.0, 0.5),
            backward_passes_per_step=3,
            average_aggregated_gradients=average,
        )
        optimizer.register_local_var(local)
        step = v1.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(loss, [weight, rows, local, unused])
        assert pairs[3] == (None, unused)
        train = optimizer.apply_gradients(pairs, global_step=step)
        variables = [step, weight, rows, local]
        with v1.train.MonitoredTrainingSession() as session:
            seen, sums = [], []
            for i in range(6):
                grad, _ = session.run([pairs[0][0], train], {factor: (1.0 + i) * (1 + 2 * rank)})
                sums.append(float(grad[0]))
                seen.append([value.tolist() for value in session.run(variables)])
    # Rank 0 adds 1, 2, 3 and 4, 5, 6; rank 1 three times as much.
    divisor = 3 if average else 1
    own = 1 + 2 * rank
    assert sums == [own * 1.0, own * 3.0, 12.0 / divisor, own * 4.0, own * 9.0, 30.0 / divisor]
    assert [values[0] for values in seen] == [0, 0, 1, 1, 1, 2]
    assert seen[0] == seen[1] == [0, [1.0, 2.0], [[0.0], [0.0]], 0.0]
    assert seen[2] == seen[3] == seen[4]
    first, second = 12.0 / divisor, 30.0 / divisor + 0.5 * 12.0 / divisor
    np.testing.assert_allclose(seen[2][1], np.array([1.0, 2.0]) - first, rtol=1e-6)
    np.testing.assert_allclose(seen[5][1], np.array([1.0, 2.0]) - first - second, rtol=1e-6)
    # Of the rows each rank has one, whose gradients are 6 and 18 in the first step.
    rows_of_first = -np.array([[3.0], [9.0]]) / divisor
    np.testing.assert_allclose(seen[2][2], rows_of_first, rtol=1e-6)
    np.testing.assert_allclose(seen[2][3], -own * 3.0 / divisor, rtol=1e-6)


@in_tensorflow
def test_broadcasts():
    with tf.Graph().as_default():
        variables = [
            v1.get_variable(f"v{i}", initializer=tf.cast(hvd.rank(), kind), use_resource=i != 2)
            for i, kind in enumerate(("float32", "bfloat16", "int64"))
        ]
        everything = hvd.broadcast_global_variables(1)
        first = hvd.broadcast_variables(variables[:1], root_rank=0)
        values = hvd.broadcast_(variables[1:], root_rank=0)
        size = hvd.size_op()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(everything)
            assert session.run(variables) == [1.0, 1.0, 1.0]
            session.run([variable.initializer for variable in variables])
            session.run(first)
            assert session.run(variables) == [0.0, hvd.rank(), hvd.rank()]
            assert session.run(values) == [0.0, 0.0]
            assert session.run(variables) == [0.0, 0.0, 0.0]
            assert session.run(size) == RANKS
            assert session.run(hvd.barrier()) is None


def test_what_needs_a_graph_is_refused():
    for call in (hvd.broadcast_global_variables, tf.function(hvd.broadcast_global_variables)):
        with pytest.raises(RuntimeError, match="use broadcast_variables"):
            call(0)


def test_optimizers_that_do_not_fit_are_refused():
    plain = v1.train.GradientDescentOptimizer(0.1)
    for optimizer, options, text in (
        (plain, {"backward_passes_per_step": 0}, r"_per_step=0 .*number, 1 or more"),
        (plain, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        (hvd.DistributedOptimizer(plain), {}, "wrap it once"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, **options)


@in_tensorflow
def test_several_passes_of_two_losses_in_turn():
    with tf.Graph().as_default():
        variables = [v1.get_variable(name, initializer=1.0) for name in ("first", "second")]
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        gradients = [optimizer.compute_gradients(v * 1.0, var_list=[v]) for v in variables]
        steps = [optimizer.apply_gradients(pairs) for pairs in gradients]
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for step in steps * 2:
                session.run(step)
            assert session.run(variables) == [-1.0, -1.0]
