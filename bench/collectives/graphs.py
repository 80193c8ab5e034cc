"""Rows in which TensorFlow gives the work: against aiacc's torch front-end, and tf.distribute."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import torch

from bench.collectives.measure import Contender
from bench.collectives.tensors import Tensors

#: Of tf.distribute's cluster: rank 0 chooses them, and the others read them here.
_PORTS = "tf-ports"


def gradients(data: Tensors) -> list[Contender]:
    """Gradients that are computed, by one addition, and averaged: by a `tf.function`, and in torch.

    Neither has the memory of the result before, and both may reduce where the gradient lies. The
    function computes from variables, as a training step does: nothing is passed to it.
    """
    import aiacc.tensorflow as hvd
    import aiacc.torch as of_torch

    data.fill()
    average = (data.size + 1) / 2
    names = data.names[::-1]
    given = data.tensors[::-1]
    results: list[torch.Tensor] = []

    def check() -> None:
        data.check(results[::-1], average)
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


class Distributed:
    """`tf.distribute` over all ranks. Made before TensorFlow does anything else in the process."""

    def __init__(self, rank: int, size: int, folder: Path, align: Any) -> None:
        """Form the cluster. Collective. Blocks."""
        file = folder / _PORTS
        if rank == 0:
            sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
            file.write_text(json.dumps([one.getsockname()[1] for one in sockets]))
            for one in sockets:
                one.close()
        align()
        workers = [f"127.0.0.1:{port}" for port in json.loads(file.read_text())]
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def step(self, data: Tensors) -> Contender:
        """A custom loop's step, as TensorFlow's guide has it: the optimizer reduces in it."""
        with self.strategy.scope():
            variables = _variables(data)
            optimizer = _sgd(variables)

        @tf.function  # type: ignore[untyped-decorator]
        def step(gradients: list[Any]) -> None:
            def of_replica(gradients: list[Any]) -> None:
                optimizer.apply(_backward(variables, gradients), variables)

            self.strategy.run(of_replica, args=(gradients,))

        # It adds up what the replicas give: a user divides the loss by their number.
        return _step("tf_distribute", data, variables, step, (data.size + 1) / 2, 1 / data.size)


def step(data: Tensors) -> Contender:
    """The same with aiacc's optimizer around Keras's."""
    import aiacc.tensorflow.keras as hvd

    variables = _variables(data)
    optimizer = hvd.DistributedOptimizer(_sgd())
    optimizer.build(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        optimizer.apply(_backward(variables, gradients), variables)

    return _step("aiacc", data, variables, step, (data.size + 1) / 2, 1.0)


def alone(data: Tensors, rank: int) -> Contender:
    """The same step of one rank by itself."""
    variables = _variables(data)
    optimizer = _sgd(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any]) -> None:
        optimizer.apply(_backward(variables, gradients), variables)

    return _step("none", data, variables, step, rank + 1.0, 1.0)


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


def _step(
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
