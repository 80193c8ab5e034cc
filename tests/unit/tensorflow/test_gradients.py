"""What becomes of gradients and statistics of batches without other ranks."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.keras as for_keras
import aiacc.tensorflow as hvd
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Tensor, Trace
from aiacc.tensorflow import node, op_library
from aiacc.tensorflow.gradients import variables_of
from aiacc.tensorflow.keras.aggregation import LocalAggregation
from aiacc.tensorflow.keras.sync_batch_norm import local_sums, statistics_of
from aiacc.tensorflow.planned import Division, divided, names_of
from aiacc.tensorflow.recorder import Gradient, MomentRecorder, trace_of
from tests.support.learning.keras_training import TELLS

ONE = tf.constant([1.0])
PLAN = Plan("mine", (("d", "c"), ("b", "a")))
GRADIENTS = [Gradient("a", 8, "float32"), Gradient("b", 0, "float16")]


# --- sums of several passes


def _run(aggregation, calls):
    """Sums that are handed on in these calls, pairs of gradients and variables."""
    updates = []

    def note(sums):
        updates.append([None if total is None else total.numpy().tolist() for total in sums])

    for grads, variables in calls:
        aggregation.run(grads, variables, note)
    return updates


def _variables():
    return tf.Variable([0.0]), tf.Variable([0.0])


def test_gradients_that_come_later_or_stop_and_parts_of_a_model_in_turn():
    both = _variables()
    passes = [[ONE, None], [ONE, None], [ONE, ONE], [ONE, None]]
    updates = _run(LocalAggregation(2, average=False), [(grads, both) for grads in passes])
    assert updates == [[[2.0], None], [[2.0], [1.0]]]
    both = _variables()
    passes = [[ONE, ONE], [ONE, None]]
    updates = _run(LocalAggregation(2, average=True), [(grads, both) for grads in passes])
    assert updates == [[[1.0], [0.5]]]
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


# --- a plan


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
    of_a_session = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match=r"plan=.* with an optimizer of tf\.compat\.v1\.train"):
        hvd.DistributedOptimizer(of_a_session, plan=PLAN)


# --- moments of a compiled step


def test_the_forward_pass_ends_with_the_first_gradient_also_where_its_start_was_told_late():
    trace = trace_of("net", GRADIENTS, [1_000_000_000, 1_500_000_000, 1_250_000_000])
    tensors = Tensor("b", 1, "float16", 0.25, 0.0), Tensor("a", 8, "float32", 0.5, 0.0)
    assert trace == Trace("net", tensors, 0.25, 0.25, "measured")
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


# --- arguments of optimizers


def test_local_layers_have_to_be_built():
    built, other, unbuilt = (keras.layers.Dense(1, name=name) for name in ("a", "b", "c"))
    built.build([None, 2])
    other.build([None, 2])
    assert variables_of(None) == []
    assert variables_of(built) == built.trainable_weights
    assert variables_of((other, built)) == other.trainable_weights + built.trainable_weights
    with pytest.raises(ValueError, match=r"'c', which is not built .*model\.build"):
        variables_of([built, unbuilt])
    with pytest.raises(ValueError, match="expected layers of Keras"):
        variables_of(["dense"])


def test_the_order_of_arguments_of_horovod_keras():
    # The ninth is num_groups, where that of horovod.tensorflow.keras is backward_passes_per_step.
    before = ["name", "", "", hvd.Compression.none, False, 1.0, hvd.Average]
    for function, argument in (
        (for_keras.DistributedOptimizer, "groups=-1"),
        (hvd.keras.DistributedOptimizer, "backward_passes_per_step=-1"),
    ):
        with pytest.raises(ValueError, match=argument):
            function(keras.optimizers.SGD(), *before, -1)


def test_a_loss_scale_optimizer_has_to_know_of_it_when_it_is_made():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    scaled.inner_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    variable = keras.Variable([1.0])
    with pytest.raises(ValueError, match=r"use DistributedOptimizer\(LossScaleOptimizer"):
        scaled.apply([tf.constant([1.0])], [variable])
    built = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    built.inner_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    built.build([variable])  # in time
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(built)


@pytest.mark.skipif(not TELLS, reason="Keras tells nothing of it before 3.10")
def test_a_loss_scale_optimizer_is_distributed_by_what_is_in_it():
    scaled = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    assert isinstance(scaled, keras.optimizers.LossScaleOptimizer)
    assert type(scaled).__name__ == "LossScaleOptimizer"
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(scaled)
    plain = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert type(plain) is keras.optimizers.LossScaleOptimizer


# --- statistics of batches that are added up

BATCH = np.random.default_rng(1).normal(1000.0, 2.0, size=(7, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("parts", [(7,), (3, 4), (0, 7), (1, 2, 4)])
def test_sums_of_parts_give_the_statistics_of_the_whole(parts, masked):
    mask = BATCH[..., 0] > 1000.0
    ends = np.cumsum(parts)[:-1]
    pieces = zip(np.split(BATCH, ends), np.split(mask, ends), strict=True)
    sums = [local_sums(tf.constant(x), [0, 1], m if masked else None) for x, m in pieces]
    assert sums[0].dtype == tf.float64
    assert sums[0].shape == [3, 3]
    mean, variance = statistics_of(sum(sums))
    values = BATCH[mask] if masked else BATCH.reshape(-1, 3)
    np.testing.assert_allclose(mean, values.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(variance, values.var(0, dtype=np.float64), rtol=1e-4)


def test_statistics_of_nothing_are_zeros():
    for mask in (None, np.zeros([7, 5], bool)):
        batch = tf.zeros([0, 5, 3]) if mask is None else tf.constant(BATCH)
        mean, variance = statistics_of(local_sums(batch, [0, 1], mask))
        assert mean.numpy().tolist() == variance.numpy().tolist() == [0.0, 0.0, 0.0]


def test_what_it_cannot_do_a_mask_of_another_shape_and_a_job_that_is_none_are_refused():
    for argument in ("fused", "renorm"):
        with pytest.raises(ValueError, match=rf"{argument}=True \(expected False\)"):
            hvd.SyncBatchNormalization(**{argument: True})
    with pytest.raises(ValueError, match="expected all dimensions but the last"):
        hvd.SyncBatchNormalization()(BATCH, training=True, mask=np.ones([7], bool))
    with pytest.raises(tf.errors.AbortedError, match=r"hvd\.init\(\)"):
        hvd.SyncBatchNormalization()(BATCH, training=True)
