"""What ranks do in the jobs of `bench.collectives.in_tensorflow`."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import torch

from bench.collectives.gloo import Gloo, beside_aiacc
from bench.collectives.tensors import Tensors
from bench.shapes import resnet50
from bench.turns import Contender, take_turns

#: Of tf.distribute's cluster: rank 0 chooses them, and the others read them here.
_PORTS = "tf-ports"


def rank(task: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Aiacc's front-end for TensorFlow, and what it is compared with, in turn."""
    with beside_aiacc(task) as gloo:
        if task["work"] == "gradients":
            contenders = _gradients(gloo.tensors(resnet50()[::-1]))
        else:  # it wants to be there before TensorFlow does anything
            strategy = _distributed(gloo)
            data = gloo.tensors(resnet50())
            contenders = [_step(data), _step_of(strategy, data), _alone(data, gloo.rank)]
        return take_turns(contenders, task["rounds"], gloo.align)


def _gradients(data: Tensors) -> list[Contender]:
    """Gradients that are computed, by one addition, and averaged: by a `tf.function`, and in torch.

    Neither has the memory of the result before, and both may reduce where the gradient lies. The
    function computes from variables, as a training step does: nothing is passed to it.
    """
    import aiacc.tensorflow as hvd
    import aiacc.torch as of_torch

    data.fill()
    average = (data.size + 1) / 2
    names, given = data.names, data.tensors
    results: list[torch.Tensor] = []

    def check() -> None:
        data.check(results, average)
        results.clear()

    variables = [tf.Variable(tensor.numpy()) for tensor in given]
    zero = tf.Variable(0.0)  # a constant would be added while the function is traced
    outputs: list[Any] = []

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> list[Any]:
        return [
            hvd.allreduce(variable + zero, op=hvd.Average, name=f"tf.{name}")
            for name, variable in zip(names, variables, strict=True)
        ]

    def run() -> None:
        outputs[:] = step()

    def check_outputs() -> None:
        results[:] = [torch.from_numpy(np.asarray(output)) for output in outputs]
        outputs.clear()
        check()

    nothing = torch.zeros(())
    start, finish = of_torch.allreduce_async_, of_torch.synchronize

    def run_torch() -> None:
        handles = [
            start(tensor + nothing, name=f"torch.{name}", op=of_torch.Average)
            for name, tensor in zip(names, given, strict=True)
        ]
        results[:] = [finish(handle) for handle in handles]

    return [
        Contender("aiacc", run, check=check_outputs),
        Contender("aiacc_torch", run_torch, check=check),
    ]


def _distributed(gloo: Gloo) -> Any:
    """The strategy of `tf.distribute` over all ranks. Collective. Blocks."""
    file = gloo.folder / _PORTS
    if gloo.rank == 0:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(gloo.size)]
        file.write_text(json.dumps([one.getsockname()[1] for one in sockets]))
        for one in sockets:
            one.close()
    gloo.align()
    workers = [f"127.0.0.1:{port}" for port in json.loads(file.read_text())]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": gloo.rank}}
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _step_of(strategy: Any, data: Tensors) -> Contender:
    """A custom loop's step, as TensorFlow's guide has it: the optimizer reduces in it."""
    with strategy.scope():
        variables = _variables(data)
        optimizer = _sgd(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        def of_replica(gradients: list[Any]) -> None:
            optimizer.apply(_backward(variables, gradients), variables)

        strategy.run(of_replica, args=(gradients,))

    # It adds up what the replicas give: a user divides the loss by their number.
    average = (data.size + 1) / 2
    return _contender("tf_distribute", data, variables, step, average, 1 / data.size)


def _step(data: Tensors) -> Contender:
    """The same with aiacc's optimizer around Keras's."""
    import aiacc.tensorflow.keras as hvd

    variables = _variables(data)
    optimizer = hvd.DistributedOptimizer(_sgd())
    optimizer.build(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        optimizer.apply(_backward(variables, gradients), variables)

    return _contender("aiacc", data, variables, step, (data.size + 1) / 2, 1.0)


def _alone(data: Tensors, rank: int) -> Contender:
    """The same step of one rank by itself."""
    variables = _variables(data)
    optimizer = _sgd(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        optimizer.apply(_backward(variables, gradients), variables)

    return _contender("none", data, variables, step, rank + 1.0, 1.0)


def _variables(data: Tensors) -> list[Any]:
    return [tf.Variable(tf.zeros(tuple(tensor.shape))) for tensor in data.tensors]


def _sgd(variables: list[Any] | None = None) -> Any:
    import keras

    optimizer = keras.optimizers.SGD(learning_rate=1.0)
    if variables is not None:
        optimizer.build(variables)
    return optimizer


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


def _contender(
    name: str, data: Tensors, variables: list[Any], step: Any, factor: float, scale: float
) -> Contender:
    data.fill()
    gradients = [tf.constant(tensor.numpy() * np.float32(scale)) for tensor in data.tensors]

    def prepare() -> None:
        for variable in variables:
            variable.assign(tf.zeros_like(variable))

    def check() -> None:
        # From zero with a learning rate of 1, the variables are minus the gradient.
        found = [torch.from_numpy(variable.numpy()) for variable in variables]
        data.check(found, -factor)

    return Contender(name, lambda: step(gradients), prepare, check=check)
