"""What two ranks learn with Keras, and one process from the data of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks

RANKS, BATCH, STEPS = 2, 4, 4
#: TensorFlow without its advertisements, and with one thread for ops, so that none may block it.
in_tensorflow = on_ranks(RANKS, env={"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTEROP_THREADS": "1"})


class Recipe(NamedTuple):
    """A model of this class of Keras, and inputs and targets of a rank, by batch."""

    make_model: Callable[[type], Any]
    data: Callable[[int], tuple[np.ndarray, np.ndarray]]


def _dense(kind: type) -> Any:
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2, dtype="float32")]
    return kind([keras.Input((3,)), *layers])


def _words(kind: type) -> Any:
    layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return kind([keras.Input((5,), dtype="int32"), *layers])


def _numbers_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rank)
    inputs, targets = (random.normal(size=(STEPS, BATCH, size)) for size in (3, 2))
    return inputs.astype(np.float32), targets.astype(np.float32)


def _words_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rank)
    inputs = random.integers(0, 7, (STEPS, BATCH, 5)).astype(np.int32)
    return inputs, random.normal(size=(STEPS, BATCH, 2)).astype(np.float32)


DENSE, WORDS = Recipe(_dense, _numbers_of), Recipe(_words, _words_of)


class OwnStep(keras.Sequential):
    """Computes and applies gradients itself."""

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


def new(recipe: Recipe, kind: type = keras.Sequential) -> Any:
    """A model, the same each time."""
    keras.utils.set_random_seed(1)
    return recipe.make_model(kind)


def alone(recipe: Recipe, optimizer: Any, passes: int = 1) -> list[np.ndarray]:
    """What one process learns that adds up gradients of ``passes`` batches of every rank."""
    model, parts = new(recipe), [recipe.data(rank) for rank in range(RANKS)]
    for step in range(0, STEPS, passes):
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_mean((model(x[n]) - y[n]) ** 2)
                for x, y in parts
                for n in range(step, step + passes)
            ]
            loss = tf.add_n(losses) / RANKS
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    return [variable.numpy() for variable in model.trainable_variables]


def fitted(recipe: Recipe, optimizer: Any, kind: type = keras.Sequential, **options: Any) -> Any:
    """A model after this rank's batches, with variables that are broadcast first."""
    model = new(recipe, kind)
    for variable in model.variables:
        variable.assign(variable + hvd.rank())
    hvd.broadcast_variables(model.variables, root_rank=0)
    model.compile(optimizer=optimizer, loss="mse", **options)
    inputs, targets = (part.reshape(-1, part.shape[-1]) for part in recipe.data(hvd.rank()))
    model.fit(inputs, targets, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def check_learned(model: Any, expected: list[np.ndarray], **tolerance: float) -> None:
    """Assert that weights are close to the expected ones, and the same bits on all ranks."""
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
        assert is_same(variable)


def is_same(value: Any) -> bool:
    """Whether all ranks have the same bits."""
    everyones = hvd.allgather(tf.convert_to_tensor(value)[None]).numpy()
    return bool((everyones == everyones[:1]).all())
