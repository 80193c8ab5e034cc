"""LARS of Keras: as that of torch, saved and loaded, and two ranks learn as one does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc import optim
from aiacc.keras.lars import LARS
from tests.support.learning.keras_training import (
    WORDS,
    alone,
    check_equal,
    check_learned,
    fitted,
    in_tensorflow,
)


def _numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


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

    def make():
        return LARS(20.0, weight_decay=0.01, nesterov=True, exclude=("*embed*",))

    model = fitted(WORDS, hvd.DistributedOptimizer(make()))
    check_learned(model, alone(WORDS, make()), rtol=1e-4, atol=1e-5)
    path = f"{tmp_path}/{hvd.rank()}.keras"
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[LARS]).optimizer
    assert isinstance(loaded, LARS)
    assert {**loaded.get_config(), "name": ""} == {**model.optimizer.get_config(), "name": ""}
    check_equal(loaded.variables, model.optimizer.variables)
