"""LARS of Keras: as that of torch, saved and loaded, and two ranks learn as one does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc import optim
from aiacc.keras.lars import LARS
from tests.support.learning.keras_training import RANKS, in_tensorflow

BATCH = 4


def _numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((5,), dtype="int32"), *layers])


def _equal_to_torch():
    shapes = [(4, 3), (5,), (2, 2, 3), (1, 2)]
    for options, theirs in (
        ({}, {}),
        ({"weight_decay": 0.1, "nesterov": True}, {}),
        ({"momentum": 0.0, "trust_clamp": (2e-3, 4e-3)}, {}),
        ({"weight_decay": 0.1}, {"exclude": ("*2", "*1")}),
        ({"weight_decay": 0.1}, {"exclude": "*[12]"}),
    ):
        values = [_numbers(i, *shape) for i, shape in enumerate(shapes)]
        variables = [keras.Variable(v, name=f"v{i}") for i, v in enumerate(values)]
        params = [(f"v{i}", torch.nn.Parameter(torch.tensor(v))) for i, v in enumerate(values)]
        ours = LARS(0.5, **options, **theirs)
        others = optim.LARS(params, lr=0.5, **options, **theirs)
        for step in range(4):
            grads = [_numbers(10 * step + i, *shape) for i, shape in enumerate(shapes)]
            grads[3] *= step != 1
            ours.apply([tf.constant(grad) for grad in grads], variables)
            for (_, parameter), grad in zip(params, grads, strict=True):
                parameter.grad = torch.tensor(grad)
            others.step()
        for variable, (_, parameter) in zip(variables, params, strict=True):
            np.testing.assert_allclose(variable.numpy(), parameter.detach(), rtol=1e-5, atol=1e-6)
    half = keras.Variable(np.full((100, 10), 300.0), dtype="float16")
    LARS(100.0).apply([tf.fill((100, 10), tf.constant(300.0, "float16"))], [half])
    np.testing.assert_allclose(half.numpy(), 270.0)
    for bad in (
        {"learning_rate": -1.0},
        {"momentum": -1.0},
        {"trust_clamp": (2, 1)},
        {"momentum": 0.0, "nesterov": True},
    ):
        with pytest.raises(ValueError, match="expected"):
            LARS(**bad)


@in_tensorflow
def test_lars(tmp_path):
    if hvd.rank() == 0:
        _equal_to_torch()
    random = np.random.default_rng(1)
    inputs = random.integers(0, 7, (4 * RANKS * BATCH, 5)).astype(np.int32)
    targets = random.normal(size=(len(inputs), 2)).astype(np.float32)

    def part(values):
        return values.reshape(-1, RANKS, BATCH, values.shape[-1])[:, hvd.rank()].reshape(
            -1, values.shape[-1]
        )

    def make():
        return LARS(20.0, weight_decay=0.01, nesterov=True, exclude=("*embed*",))

    found = []
    for mine in (False, True):
        model = _model()
        model.compile(hvd.DistributedOptimizer(make()) if mine else make(), "mse")
        data = map(part, (inputs, targets)) if mine else (inputs, targets)
        size = BATCH if mine else RANKS * BATCH
        model.fit(*data, batch_size=size, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    path = f"{tmp_path}/{hvd.rank()}.keras"
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[LARS]).optimizer
    assert isinstance(loaded, LARS)
    assert {**loaded.get_config(), "name": ""} == {**model.optimizer.get_config(), "name": ""}
    for one, other in zip(loaded.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
