"""Tape, optimizer and callbacks: two ranks learn what one process learns from the data of both."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from examples import keras_digits
from tests.parallel.tensorflow.test_ops import ENV
from tests.support.learning.keras_training import (
    DENSE,
    STEPS,
    WORDS,
    OwnStep,
    alone,
    check_learned,
    fitted,
    in_tensorflow,
    is_same,
    new,
)
from tests.support.ranks import run_ranks


def _by_tape(compiled, **options):
    model, optimizer = new(DENSE), keras.optimizers.SGD(0.1)
    if options.get("groups") == "layers":
        options["groups"] = [layer.trainable_variables for layer in model.layers]
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape, **options)
        assert isinstance(tape, tf.GradientTape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)

    step = tf.function(step) if compiled else step
    for x, y in zip(*DENSE.data(hvd.rank()), strict=True):
        step(tf.constant(x), tf.constant(y))
    return model


@in_tensorflow
def test_gradients_of_tapes_are_those_of_all_ranks():
    expected = alone(DENSE, keras.optimizers.SGD(0.1))
    for compiled in (False, True):
        for options in (
            {},
            {"groups": 2},
            {"groups": "layers"},
            {"num_groups": 1, "gradient_predivide_factor": 2.0},
        ):
            check_learned(_by_tape(compiled, **options), expected)
    check_learned(_by_tape(True, op=hvd.Sum), alone(DENSE, keras.optimizers.SGD(0.2)))

    variables = [tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable(5.0)]
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        rows = tf.gather(variables[0], [hvd.rank()])
        loss = tf.reduce_sum(rows) + (hvd.rank() + 1.0) * variables[1]
    tape.register_local_source(variables[1])
    sparse, local, nothing = tape.gradient(loss, variables)
    assert tf.convert_to_tensor(sparse).numpy().tolist() == [0.5, 0.5]
    assert local.numpy() == (hvd.rank() + 1) / 2
    assert nothing is None

    model = new(DENSE)
    inputs, targets = DENSE.data(hvd.rank())
    inner = tf.GradientTape()
    partial = hvd.PartialDistributedGradientTape(
        inner, local_layers=model.layers[0], sparse_as_dense=True, scale_local_gradients=False
    )
    with partial as tape:
        loss = tf.reduce_mean((model(inputs[0]) - targets[0]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    assert [is_same(grad) for grad in grads] == [False, False, True, True]
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(inner, op=hvd.Sum, gradient_predivide_factor=2.0)


def _adam():
    return keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.1)


def _sgd():
    return keras.optimizers.SGD(0.5)


def _clipped():
    return keras.optimizers.Adam(0.05, global_clipnorm=0.1)


#: What is trained and by which optimizer, options of the distributed one, and how Keras runs it.
#: Squares and norms of sparse gradients count a row that is there twice as two, so what is made
#: dense is as in one process with an optimizer that has neither.
WAYS = {
    "fit": (DENSE, _adam, {}, {}),
    "a group, eagerly": (DENSE, _adam, {"groups": 1}, {"run_eagerly": True}),
    "two passes": (DENSE, _sgd, {"backward_passes_per_step": 2}, {}),
    "sparse": (WORDS, _clipped, {}, {}),
    "a step of one's own": (WORDS, _clipped, {}, {"kind": OwnStep}),
    "a group in a step of one's own": (WORDS, _clipped, {"groups": 1}, {"kind": OwnStep}),
    "sparse as dense": (WORDS, _sgd, {"sparse_as_dense": True}, {}),
}


@in_tensorflow
def test_optimizers_learn_what_those_of_one_process_do():
    for name, (recipe, make, options, how) in WAYS.items():
        passes = options.get("backward_passes_per_step", 1)
        plain, given = make(), make()
        optimizer = hvd.DistributedOptimizer(given, **options)
        assert isinstance(optimizer, type(plain)), name
        assert type(optimizer).__name__ == type(plain).__name__
        assert optimizer.name == given.name
        model = fitted(recipe, optimizer, **how)
        tolerance = {} if recipe is DENSE else {"rtol": 1e-4, "atol": 1e-5}
        check_learned(model, alone(recipe, plain, passes), **tolerance)
        assert optimizer.iterations.numpy() == STEPS // passes
    averaged = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.2), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    expected = alone(DENSE, keras.optimizers.SGD(0.1), passes=2)
    check_learned(fitted(DENSE, averaged, run_eagerly=True), expected)


@in_tensorflow
def test_a_saved_model_has_the_plain_optimizer_and_may_be_wrapped_again(tmp_path):
    model = fitted(DENSE, hvd.DistributedOptimizer(_adam()))
    path = Path(tmp_path) / str(hvd.rank()) / "model.keras"
    path.parent.mkdir()  # Keras 3.4 writes files of fixed names beside it
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    again = hvd_keras.load_model(path)
    assert isinstance(again.optimizer, type(again.optimizer).__mro__[1])
    assert type(again.optimizer) is not keras.optimizers.Adam
    for new_one, old in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(new_one, old)
    assert again.optimizer.iterations.numpy() == STEPS


@in_tensorflow
def test_variables_and_layers_of_each_rank_are_not_shared():
    inputs, targets = DENSE.data(hvd.rank())
    model, one = new(DENSE), new(DENSE)
    local = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    local.register_local_var(one.trainable_variables[0])
    options = {"local_layers": model.layers[0], "scale_local_gradients": False}
    partial = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    for trained, optimizer, shared in ((one, local, 3), (model, partial, 2)):
        trained.compile(optimizer=optimizer, loss="mse")
        trained.fit(inputs[0], targets[0], verbose=0)
        found = [is_same(variable) for variable in trained.trainable_variables]
        assert found == [False] * (4 - shared) + [True] * shared


class _Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(round(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)), 6))


@in_tensorflow
def test_callbacks(tmp_path):
    rank, folder = hvd.rank(), tmp_path
    inputs, targets = (part.reshape(16, -1) for part in DENSE.data(rank))
    model = new(DENSE)
    kept = model.variables[-1]
    for variable in model.variables:
        variable.assign(variable + rank)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.4), op=hvd.Sum)
    model.compile(optimizer=optimizer, loss="mse")
    rates = _Rates()
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kept]),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
        hvd_keras.callbacks.LearningRateScheduleCallback(0.4, 0.1, start_epoch=2, end_epoch=3),
        hvd_keras.callbacks.LearningRateScheduleCallback(0.4, lambda e: 0.5**e, start_epoch=3),
        rates,
    ]
    if rank == 0:
        best = hvd_keras.callbacks.BestModelCheckpoint(monitor="loss")
        best.filepath = f"{folder}/best.keras"
        callbacks.append(best)
    history = model.fit(
        inputs, targets, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=callbacks
    ).history
    assert rates.rates == [0.25, 0.3, 0.35, 0.4, 0.04, 0.04, 0.05, 0.05]
    assert history["lr"] == pytest.approx([0.3, 0.4, 0.04, 0.05])
    assert is_same(history["loss"])
    assert all(is_same(variable) for variable in model.variables[:-1])
    everyones = hvd.allgather(kept.numpy()[None])
    np.testing.assert_allclose(everyones[1], everyones[0] + 1, rtol=1e-6)
    if rank == 0:
        assert keras.models.load_model(f"{folder}/best.keras").count_params() > 0


def _digits(epochs, global_batch):
    hvd.init()
    arguments = [
        *("--epochs", str(epochs), "--verbose", "0"),
        *("--batch-size", str(global_batch // hvd.size())),
    ]
    model, accuracy = keras_digits.train(keras_digits.parse(arguments))
    hvd.shutdown()
    return [variable.numpy() for variable in model.trainable_variables], accuracy


def test_digits_on_two_ranks_as_on_one():
    (two, _), (other, _) = run_ranks(2, _digits, 2, 64, env=ENV)
    ((one, _),) = run_ranks(1, _digits, 2, 64, env=ENV)
    for a, b, c in zip(two, other, one, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-4)
