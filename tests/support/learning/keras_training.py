"""What two ranks learn with Keras, and one process from the data of both.

`keras` is tf_keras (Keras 2) where TF_USE_LEGACY_KERAS says so, else Keras 3.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks

OF_KERAS_2 = "TF_USE_LEGACY_KERAS" in os.environ
keras: Any = importlib.import_module("tf_keras" if OF_KERAS_2 else "keras")
#: Modules with optimizers; Keras 2 has two of each.
FAMILIES = [keras.optimizers, *([keras.optimizers.legacy] if OF_KERAS_2 else [])]
LSO = keras.mixed_precision.LossScaleOptimizer
#: Whether a LossScaleOptimizer tells the optimizer in it when it is made.
TELLS = OF_KERAS_2 or tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 10)

RANKS, BATCH, STEPS = 2, 4, 4
#: One thread of TensorFlow for ops, so that none may block it.
ENV = {"TF_NUM_INTEROP_THREADS": "1"}
in_tensorflow = on_ranks(RANKS, env=ENV)
KERAS_2 = {"tf_keras": {"env": {**ENV, "TF_USE_LEGACY_KERAS": "1"}}}
in_tf_keras = on_ranks(RANKS, ways=KERAS_2)
in_each_keras = on_ranks(RANKS, ways={"keras": {"env": ENV}, **KERAS_2})


class Recipe(NamedTuple):
    """Layers of a model for a layer that normalises, and inputs and targets of a rank, by batch."""

    layers: Callable[[Any], list[Any]]
    data: Callable[[int], tuple[np.ndarray, np.ndarray]]


def _dense(normalise: Any, *between: Any) -> list[Any]:
    layers = keras.layers
    return [
        *(keras.Input((3,)), layers.Dense(5, activation="tanh"), *between),
        layers.Dense(2, dtype="float32"),
    ]


def _normed(normalise: Any) -> list[Any]:
    return _dense(normalise, normalise())


def _words(normalise: Any) -> list[Any]:
    layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return [keras.Input((5,), dtype="int32"), *layers]


def _numbers_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rank)
    inputs, targets = (random.normal(size=(STEPS, BATCH, size)) for size in (3, 2))
    return inputs.astype(np.float32), targets.astype(np.float32)


def _words_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rank)
    inputs = random.integers(0, 7, (STEPS, BATCH, 5)).astype(np.int32)
    return inputs, random.normal(size=(STEPS, BATCH, 2)).astype(np.float32)


DENSE, NORMED = Recipe(_dense, _numbers_of), Recipe(_normed, _numbers_of)
WORDS = Recipe(_words, _words_of)


class OwnStep(keras.Sequential):
    """Computes and applies gradients itself."""

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        step_of(self.optimizer, self.trainable_variables)(*gradients)
        return {"loss": loss}


def step_of(optimizer: Any, variables: list[Any], compiled: bool = False) -> Callable[..., None]:
    """Applies gradients of these variables."""

    def apply(*gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tf.function(apply) if compiled else apply


def new(recipe: Recipe, kind: type = keras.Sequential, normalise: Any = None) -> Any:
    """A model, the same each time; its layers normalise the batches of all ranks."""
    keras.utils.set_random_seed(1)
    return kind(recipe.layers(normalise or hvd.SyncBatchNormalization))


def alone(recipe: Recipe, optimizer: Any, passes: int = 1) -> list[np.ndarray]:
    """What one process learns that adds up gradients of ``passes`` batches of every rank."""
    model = new(recipe, normalise=keras.layers.BatchNormalization)
    parts = zip(*map(recipe.data, range(RANKS)), strict=True)
    x, y = (np.concatenate(values, 1) for values in parts)
    for step in range(0, STEPS, passes):
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_mean((model(x[n], training=True) - y[n]) ** 2)
                for n in range(step, step + passes)
            ]
            loss = tf.add_n(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        step_of(optimizer, model.trainable_variables)(*gradients)
    return [variable.numpy() for variable in model.weights]


def fitted(recipe: Recipe, optimizer: Any, kind: type = keras.Sequential, **options: Any) -> Any:
    """A model after this rank's batches, with variables that are broadcast first."""
    model = new(recipe, kind)
    for variable in model.variables:
        variable.assign(variable + hvd.rank())
    hvd.broadcast_variables(model.variables, root_rank=0)
    model.compile(optimizer=optimizer, loss="mse", **options)
    fit(model, recipe)
    return model


def fit(model: Any, recipe: Recipe = DENSE, **options: Any) -> Any:
    """Train with this rank's batches."""
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    parts = (part.reshape(-1, part.shape[-1]) for part in recipe.data(hvd.rank()))
    return model.fit(*parts, **options)


def check_learned(model: Any, expected: list[np.ndarray], **tolerance: float) -> None:
    """Assert that variables are close to the expected ones, and the same bits on all ranks."""
    for variable, value in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(variable, value, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
        assert is_same(variable)


def check_equal(ones: Any, others: Any) -> None:
    """Assert that variables have the same bits."""
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one, other)


def state_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer."""
    variables = optimizer.variables
    return variables() if callable(variables) else list(variables)


def is_same(value: Any) -> bool:
    """Whether all ranks have the same bits."""
    everyones = hvd.allgather(tf.convert_to_tensor(value)[None]).numpy()
    return bool((everyones == everyones[:1]).all())
