"""Optimizers of Keras that follow a plan of aiacc.planning: two ranks learn as one does."""

from __future__ import annotations

import functools
import warnings
from unittest import mock

import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.planning.plan import Plan
from aiacc.tensorflow import gradients
from tests.support.learning.keras_training import (
    DENSE,
    OF_KERAS_2,
    RANKS,
    OwnStep,
    Recipe,
    alone,
    check_learned,
    fitted,
    in_each_keras,
    in_tensorflow,
    keras,
)

_END = ":0" if OF_KERAS_2 else ""
_LAYERS = ("first", "words", "last")
NAMES = [f"{name}/{kind}{_END}" for name in _LAYERS for kind in ("kernel", "bias")]
PLAN = Plan("mine", ((NAMES[5], NAMES[4], NAMES[3]), (NAMES[2], NAMES[1])))


def _layers(_):
    dense = [keras.layers.Dense(2, activation="tanh", name=name) for name in _LAYERS]
    return [keras.Input((3,)), *dense]


NET = Recipe(_layers, DENSE.data)


def functional(layers, kind=keras.Model):
    """A model whose variables are called as its layers are."""
    inputs, *rest = layers
    return kind(inputs=inputs, outputs=functools.reduce(lambda x, layer: layer(x), rest, inputs))


class FunctionalOwnStep(keras.Model):
    train_step = OwnStep.train_step


own_step = functools.partial(functional, kind=FunctionalOwnStep)


def _distributed(plan, **options):
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), plan=plan, **options)


def _groups_of(call):
    """Shapes of the gradients that ``call`` lets travel as one, for each such, and its result."""
    with mock.patch.object(
        gradients, "grouped_allreduce", wraps=gradients.grouped_allreduce
    ) as calls:
        result = call()
    groups = [[tensor.shape.as_list() for tensor in c.args[0]] for c in calls.mock_calls]
    return [group for i, group in enumerate(groups) if group not in groups[:i]], result


@in_each_keras
def test_the_buckets_of_a_plan_give_the_same_training():
    expected = alone(NET, keras.optimizers.SGD(0.5))
    for kind, options in ((functional, {}), (own_step, {}), (functional, {"run_eagerly": True})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer = _distributed(PLAN)
            groups, model = _groups_of(functools.partial(fitted, NET, optimizer, kind, **options))
        check_learned(model, expected)
        if options:  # all are there when the backward pass is over
            assert {len(group) for group in groups} == {6}
        else:
            assert groups == [[[2], [2, 2], [2]], [[2, 2], [2]]]
            said = "plan leaves out 1 of 6 variables, 'first/kernel"
            assert any(said in str(one.message) for one in caught)


@in_tensorflow
def test_sums_of_several_passes_travel_by_the_plan():
    optimizer = _distributed(PLAN, backward_passes_per_step=2)
    groups, _ = _groups_of(lambda: fitted(NET, optimizer, functional))
    assert [len(group) for group in groups] == [3, 2]


@in_tensorflow
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
            fitted(NET, _distributed(plans[hvd.rank()]), functional)
    # The same plan, for variables that one rank calls differently.
    variable = keras.Variable([1.0], name=["mine", "theirs"][hvd.rank()])
    optimizer = _distributed(Plan("x", (("mine",),)))
    text = ["of another rank has not", "the optimizer lacks, 'mine'"][hvd.rank()]
    with pytest.raises(ValueError, match=text):
        optimizer.apply([tf.constant([1.0])], [variable])
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == RANKS  # the job goes on


@in_tensorflow
def test_a_bucket_without_all_its_gradients_goes_one_by_one():
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
