"""Optimizers of Keras that follow a plan of aiacc.planning: two ranks learn as one does."""

from __future__ import annotations

import os
import warnings
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.planning.plan import Plan
from aiacc.tensorflow import gradients
from tests.parallel.tensorflow.test_ops import ENV, SIZE
from tests.support.jobs import on_ranks
from tests.support.ranks import run_ranks

BATCH, STEPS = 4, 3
NAMES = ["first/kernel", "first/bias", "words/kernel", "words/bias", "last/kernel", "last/bias"]
PLAN = Plan("mine", (("last/bias", "last/kernel", "words/bias"), ("words/kernel", "first/bias")))


_on_two = on_ranks(SIZE, env=ENV)


def _run(function, *args, legacy=False):
    env = {**ENV, "TF_USE_LEGACY_KERAS": "1"} if legacy else ENV
    run_ranks(SIZE, function, *args, env=env)


def keras_here():
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        import tf_keras

        return tf_keras
    import keras

    return keras


def _named(plan):
    """``plan`` by the names that this Keras gives."""
    end = ":0" if os.environ.get("TF_USE_LEGACY_KERAS") else ""
    buckets = tuple(tuple(name + end for name in bucket) for bucket in plan.buckets)
    return Plan(plan.planner, buckets)


def make_model(own_step=False):
    keras = keras_here()

    class OwnStep(keras.Model):
        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
            variables = self.trainable_variables
            grads = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(grads, variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(1)
    inputs = x = keras.Input((3,))
    for name in ("first", "words", "last"):
        x = keras.layers.Dense(2, activation="tanh", name=name)(x)
    return (OwnStep if own_step else keras.Model)(inputs=inputs, outputs=x)


def _trained(optimizer, ranks, own_step=False, **options):
    """Weights of a model that has learnt from the batches of some ranks."""
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(STEPS, SIZE, BATCH, n)).astype(np.float32) for n in (3, 2))
    model = make_model(own_step)
    model.compile(optimizer, "mse", **options)
    x, y = (values[:, ranks].reshape(-1, values.shape[-1]) for values in (x, y))
    model.fit(x, y, batch_size=len(ranks) * BATCH, shuffle=False, verbose=0)
    return model.get_weights()


def _distributed(plan, **options):
    return hvd.DistributedOptimizer(keras_here().optimizers.SGD(0.5), plan=plan, **options)


def _groups_of(call):
    """Shapes of the gradients that ``call`` lets travel as one, for each such, and its result."""
    with mock.patch.object(
        gradients, "grouped_allreduce", wraps=gradients.grouped_allreduce
    ) as calls:
        result = call()
    groups = [[tensor.shape.as_list() for tensor in c.args[0]] for c in calls.mock_calls]
    return [group for i, group in enumerate(groups) if group not in groups[:i]], result


def _follows():
    hvd.init()
    expected = _trained(keras_here().optimizers.SGD(0.5), range(SIZE))
    for own_step in (False, True):
        with pytest.warns(UserWarning, match="plan leaves out 1 of 6 variables, 'first/kernel"):
            groups, found = _groups_of(
                lambda own_step=own_step: _trained(
                    _distributed(_named(PLAN)), [hvd.rank()], own_step
                )
            )
        assert groups == [[[2], [2, 2], [2]], [[2, 2], [2]]]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups, found = _groups_of(
            lambda: _trained(_distributed(_named(PLAN)), [hvd.rank()], run_eagerly=True)
        )
    assert {len(group) for group in groups} == {6}  # all are there when the backward pass is over
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    hvd.shutdown()


@pytest.mark.parametrize("legacy", [False, True], ids=["keras 3", "tf_keras"])
def test_the_buckets_of_a_plan_give_the_same_training(legacy):
    _run(_follows, legacy=legacy)


@pytest.mark.filterwarnings("ignore:plan leaves out")
@_on_two
def test_sums_of_several_passes_travel_by_the_plan():
    groups, _ = _groups_of(
        lambda: _trained(_distributed(_named(PLAN), backward_passes_per_step=2), [hvd.rank()])
    )
    assert [len(group) for group in groups] == [3, 2]


@_on_two
def test_every_rank_is_told_of_a_plan_that_one_cannot_follow():
    half, strange = Plan("half", PLAN.buckets[:1]), Plan("strange", (("first/bias", "head"),))
    different = "plan: the ranks were given different ones"
    unknown = "plan has 1 gradient that the optimizer lacks, 'head' for one"
    for plans, texts in (
        ([PLAN, half], [different] * 2),
        ([strange, strange], [unknown] * 2),
        ([PLAN, strange], [different, unknown]),
    ):
        with pytest.raises(ValueError, match=texts[hvd.rank()]):
            _trained(_distributed(plans[hvd.rank()]), [hvd.rank()])
    # The same plan, for variables that one rank calls differently.
    variable = keras_here().Variable([1.0], name=["mine", "theirs"][hvd.rank()])
    optimizer = _distributed(Plan("x", (("mine",),)))
    text = ["of another rank has not", "the optimizer lacks, 'mine'"][hvd.rank()]
    with pytest.raises(ValueError, match=text):
        optimizer.apply([tf.constant([1.0])], [variable])
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == SIZE  # the job goes on


@_on_two
def test_a_bucket_without_all_its_gradients_goes_one_by_one():
    keras = keras_here()
    variables = [keras.Variable([float(i)], name=f"v{i}") for i in range(4)]
    rows = keras.Variable([[1.0], [1.0]], name="rows")
    plan = Plan("mine", (("v0", "v1"), ("v2", "rows"), ("v3",)))

    def step(optimizer, grads):
        given = [*grads, tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([hvd.rank()]), [2, 1])]
        optimizer.apply(given, [*variables, rows])

    grads = [None, *(tf.constant([hvd.rank() + 1.0]) for _ in range(3))]
    optimizer = _distributed(plan)
    optimizer.build([*variables, rows])
    for number in range(2):
        compiled = tf.function(lambda: step(optimizer, grads))  # traced twice, told of once
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            groups, _ = _groups_of(compiled)
        assert groups == []  # a bucket of one is no group
        texts = [str(w.message) for w in caught if str(w.message).startswith("plan")]
        assert len(texts) == 1 - number, texts
        if texts:
            assert "no dense gradient came for 'v0'" in texts[0]
            assert "as in 2 of 3 buckets" in texts[0]
    assert [float(v[0]) for v in variables] == [0.0, 1 - 1.5, 2 - 1.5, 3 - 1.5]
    assert rows.numpy().tolist() == [[0.5], [0.5]]
    dense = _distributed(plan, sparse_as_dense=True)
    dense.build([*variables, rows])
    groups, _ = _groups_of(tf.function(lambda: step(dense, grads)))
    assert groups == [[[1], [2, 1]]]
