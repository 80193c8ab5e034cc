"""LARS of Keras: its steps are those of torch's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from aiacc.keras.lars import LARS


def _numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_its_steps_are_those_of_torchs():
    import torch

    from aiacc import optim

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
        {"trust_clamp": (2, 1)},
        {"momentum": 0.0, "nesterov": True},
    ):
        with pytest.raises(ValueError, match="expected"):
            LARS(**bad)
