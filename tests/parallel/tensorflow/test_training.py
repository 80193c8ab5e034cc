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
from tests.parallel.tensorflow.test_ops import ENV, SIZE, TIMEOUT_S
from tests.support.ranks import run_ranks

STEPS = 4


def _run(function, *args):
    return run_ranks(SIZE, function, *args, timeout=TIMEOUT_S, env=ENV)


def _model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((3,)), *layers])


def _data(rank):
    """Every batch of a rank: inputs of shape (STEPS, 4, 3), targets of (STEPS, 4, 2)."""
    random = np.random.default_rng(rank)
    shapes = (STEPS, 4, 3), (STEPS, 4, 2)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


def _alone(optimizer, steps=STEPS, passes=1):
    """Weights after steps of one process on the data of all ranks."""
    model = _model()
    parts = [_data(rank) for rank in range(SIZE)]
    for step in range(0, steps, passes):
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_mean((model(x[n]) - y[n]) ** 2)
                for x, y in parts
                for n in range(step, step + passes)
            ]
            loss = sum(losses) / SIZE
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return [variable.numpy() for variable in model.trainable_variables]


def _check(model, expected):
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-6)
        everyones = hvd.allgather(variable.numpy()[None])
        np.testing.assert_array_equal(everyones[0], everyones[1])


def _tapes():
    hvd.init()
    inputs, targets = _data(hvd.rank())
    expected = _alone(keras.optimizers.SGD(0.1))

    def train(compiled, **options):
        model, optimizer = _model(), keras.optimizers.SGD(0.1)
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
        for x, y in zip(inputs, targets, strict=True):
            step(tf.constant(x), tf.constant(y))
        return model

    for compiled in (False, True):
        for options in (
            {},
            {"groups": 2},
            {"groups": "layers"},
            {"num_groups": 1, "gradient_predivide_factor": 2.0},
        ):
            _check(train(compiled, **options), expected)
    _check(train(True, op=hvd.Sum), _alone(keras.optimizers.SGD(0.2)))

    variables = [tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable(5.0)]
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        rows = tf.gather(variables[0], [hvd.rank()])
        loss = tf.reduce_sum(rows) + (hvd.rank() + 1.0) * variables[1]
    tape.register_local_source(variables[1])
    sparse, local, nothing = tape.gradient(loss, variables)
    assert tf.convert_to_tensor(sparse).numpy().tolist() == [0.5, 0.5]
    assert local.numpy() == (hvd.rank() + 1) / 2
    assert nothing is None

    model = _model()
    inner = tf.GradientTape()
    partial = hvd.PartialDistributedGradientTape(
        inner, local_layers=model.layers[0], sparse_as_dense=True, scale_local_gradients=False
    )
    with partial as tape:
        loss = tf.reduce_mean((model(inputs[0]) - targets[0]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    everyones = hvd.allgather(grads[0][None])
    assert not np.allclose(everyones[0], everyones[1])
    everyones = hvd.allgather(grads[2][None])
    np.testing.assert_array_equal(everyones[0], everyones[1])
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(inner, op=hvd.Sum, gradient_predivide_factor=2.0)
    hvd.shutdown()


def test_gradients_of_tapes_are_those_of_all_ranks():
    _run(_tapes)


def _optimizers(folder):
    hvd.init()
    rank = hvd.rank()
    inputs, targets = _data(rank)

    def fit(optimizer, **options):
        model = _model()
        for variable in model.variables:
            variable.assign(variable + rank)  # until they are broadcast
        hvd.broadcast_variables(model.variables, root_rank=0)
        model.compile(optimizer=optimizer, loss="mse", **options)
        flat = (inputs.reshape(-1, 3), targets.reshape(-1, 2))
        model.fit(*flat, batch_size=4, shuffle=False, verbose=0)
        return model

    plain = keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.1)
    expected = _alone(keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.1))
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert optimizer.name == plain.name
    model = fit(optimizer)
    _check(model, expected)
    adam = lambda: keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.1)  # noqa: E731
    _check(fit(hvd_keras.DistributedOptimizer(adam(), groups=1), run_eagerly=True), expected)

    # A saved model has the plain optimizer with its state; a loaded one may be wrapped again.
    path = Path(folder) / str(rank) / "model.keras"
    path.parent.mkdir()  # Keras 3.4 writes files of fixed names beside it
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    again = hvd_keras.load_model(path)
    assert isinstance(again.optimizer, type(again.optimizer).__mro__[1])
    assert type(again.optimizer) is not keras.optimizers.Adam
    for new, old in zip(again.optimizer.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(new, old)
    assert again.optimizer.iterations.numpy() == STEPS

    # Two passes a step: the mean over ranks of the sum over passes.
    expected = _alone(keras.optimizers.SGD(0.1), passes=2)
    sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    model = fit(sgd)
    _check(model, expected)
    assert sgd.iterations.numpy() == STEPS // 2
    averaged = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.2), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    _check(fit(averaged, run_eagerly=True), expected)

    # A variable of its own for each rank.
    local = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = _model()
    local.register_local_var(model.trainable_variables[0])
    model.compile(optimizer=local, loss="mse")
    model.fit(inputs[0], targets[0], verbose=0)
    everyones = hvd.allgather(model.trainable_variables[0].numpy()[None])
    assert not np.allclose(everyones[0], everyones[1])
    everyones = hvd.allgather(model.trainable_variables[1].numpy()[None])
    np.testing.assert_array_equal(everyones[0], everyones[1])

    model = _model()
    options = {"local_layers": model.layers[0], "scale_local_gradients": False}
    partial = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    model.compile(optimizer=partial, loss="mse")
    model.fit(inputs[0], targets[0], verbose=0)
    for number, variable in enumerate(model.trainable_variables):
        everyones = hvd.allgather(variable.numpy()[None])
        assert np.array_equal(everyones[0], everyones[1]) == (number >= 2)
    hvd.shutdown()


def test_optimizers_under_fit(tmp_path):
    _run(_optimizers, str(tmp_path))


class _Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(round(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)), 6))


def _callbacks(folder):
    hvd.init()
    rank = hvd.rank()
    inputs, targets = (part.reshape(16, -1) for part in _data(rank))
    model = _model()
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
    losses = hvd.allgather([history["loss"]]).numpy()
    np.testing.assert_array_equal(losses[0], losses[1])
    for variable in model.variables[:-1]:
        everyones = hvd.allgather(variable.numpy()[None])
        np.testing.assert_array_equal(everyones[0], everyones[1])
    everyones = hvd.allgather(kept.numpy()[None])
    np.testing.assert_allclose(everyones[1], everyones[0] + 1, rtol=1e-6)
    if rank == 0:
        assert keras.models.load_model(f"{folder}/best.keras").count_params() > 0
    hvd.shutdown()


def test_callbacks(tmp_path):
    _run(_callbacks, str(tmp_path))


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
    (two, _), (other, _) = run_ranks(2, _digits, 2, 64, timeout=TIMEOUT_S, env=ENV)
    ((one, _),) = run_ranks(1, _digits, 2, 64, timeout=TIMEOUT_S, env=ENV)
    for a, b, c in zip(two, other, one, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-4)
