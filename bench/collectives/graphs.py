"""What ranks do in the jobs of `bench.collectives.in_tensorflow`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
import torch
import torch.distributed as dist

from aiacc.run.local import free_port
from bench.collectives.gloo import Gloo, beside_aiacc
from bench.collectives.tensors import Tensors
from bench.shapes import resnet50
from bench.turns import Contender, take_turns


def rank(task: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Steps of aiacc's front-end for TensorFlow, and of what it is compared with, in turn."""
    import aiacc.tensorflow.keras as hvd

    with beside_aiacc(task) as gloo:
        strategy = _distributed(gloo)  # it wants to be there before TensorFlow does anything
        data = gloo.tensors(resnet50())
        average = (data.size + 1) / 2
        contenders = [
            _step("aiacc", data, lambda: hvd.DistributedOptimizer(_sgd()), average),
            _step("tf_distribute", data, _sgd, average, strategy),
            _step("none", data, _sgd, gloo.rank + 1.0),
        ]
        return take_turns(contenders, task["rounds"], gloo.align)


def _distributed(gloo: Gloo) -> Any:
    """The strategy of `tf.distribute` over all ranks. Collective. Blocks."""
    ports: list[int | None] = [None] * gloo.size
    dist.all_gather_object(ports, free_port())
    workers = [f"127.0.0.1:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": gloo.rank}}
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _step(
    name: str, data: Tensors, make: Callable[[], Any], factor: float, strategy: Any = None
) -> Contender:
    """A custom loop's step, as TensorFlow's guide has it: the optimizer reduces in it.

    Args:
        name: Its key.
        data: Gradients of the loss.
        make: Makes the optimizer.
        factor: The gradient that must be applied, over the pattern of ``data``.
        strategy: Of `tf.distribute`, if that reduces. It adds up what the replicas give: a user
            divides the loss by their number.
    """
    with nullcontext() if strategy is None else strategy.scope():
        variables = [tf.Variable(tf.zeros(tuple(tensor.shape))) for tensor in data.tensors]
        optimizer = make()
        optimizer.build(variables)

    def of_replica(gradients: list[Any]) -> None:
        optimizer.apply(_backward(variables, gradients), variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        if strategy is None:
            of_replica(gradients)
        else:
            strategy.run(of_replica, args=(gradients,))

    data.fill()
    scale = np.float32(1.0 if strategy is None else 1 / data.size)
    gradients = [tf.constant(tensor.numpy() * scale) for tensor in data.tensors]

    def prepare() -> None:
        for variable in variables:
            variable.assign(tf.zeros_like(variable))

    def check() -> None:
        # From zero with a learning rate of 1, the variables are minus the gradient.
        found = [torch.from_numpy(variable.numpy()) for variable in variables]
        data.check(found, -factor)

    return Contender(name, lambda: step(gradients), prepare, check=check)


def _sgd() -> Any:
    import keras

    return keras.optimizers.SGD(learning_rate=1.0)


def _backward(variables: list[Any], gradients: list[Any]) -> list[Any]:
    """Gradients of the loss whose gradients are given, by a tape."""
    with tf.GradientTape() as tape:
        parts = [
            tf.reduce_sum(variable * gradient)
            for variable, gradient in zip(variables, gradients, strict=True)
        ]
        loss = tf.add_n(parts)
    found: list[Any] = tape.gradient(loss, variables)
    return found
