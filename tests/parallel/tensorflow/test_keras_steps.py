"""Kinds of training steps of Keras 3, and torch beside it: two ranks learn as one does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc.tensorflow.gradients import GradientReduction
from tests.parallel.tensorflow.test_ops import ENV, SIZE, TIMEOUT_S
from tests.support.ranks import run_ranks

BATCH = 4


def _run(function):
    run_ranks(SIZE, function, timeout=TIMEOUT_S, env=ENV)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


def _words_model(kind=keras.Sequential):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return kind([keras.Input((5,), dtype="int32"), *layers])


def _words():
    """Batches of both ranks in turn."""
    random = np.random.default_rng(1)
    inputs = random.integers(0, 7, (4 * SIZE * BATCH, 5)).astype(np.int32)
    return inputs, random.normal(size=(len(inputs), 2)).astype(np.float32)


def _of_rank(values):
    return values.reshape(-1, SIZE, BATCH, values.shape[-1])[:, hvd.rank()].reshape(
        -1, values.shape[-1]
    )


def _steps():
    hvd.init()
    inputs, targets = _words()

    def train(optimizer, mine, kind=keras.Sequential):
        model = _words_model(kind)
        model.compile(optimizer, "mse")
        parts = [_of_rank(values) for values in (inputs, targets)] if mine else (inputs, targets)
        model.fit(*parts, batch_size=BATCH if mine else SIZE * BATCH, shuffle=False, verbose=0)
        return model.get_weights()

    # Squares and norms of sparse gradients count a row that is there twice as two, so what is made
    # dense is as in one process with an optimizer that has neither.
    adam = lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1)  # noqa: E731
    for options, kind, make in (
        ({}, keras.Sequential, adam),
        ({}, OwnStep, adam),
        ({"groups": 1}, OwnStep, adam),
        ({"sparse_as_dense": True}, keras.Sequential, lambda: keras.optimizers.SGD(0.5)),
    ):
        expected = train(make(), mine=False)
        found = train(hvd.DistributedOptimizer(make(), **options), mine=True, kind=kind)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(options))
    hvd.shutdown()


def test_embeddings_clipping_and_steps_of_ones_own():
    _run(_steps)


def _metrics_and_groups():
    hvd.init()
    rank = hvd.rank()
    callback = hvd_keras.callbacks.MetricAverageCallback()
    logs = {"loss": np.float32(rank), "accuracy": 2.0 * rank, "text": "no number"}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.5, "accuracy": 1.0, "text": "no number"}
    with pytest.raises(ValueError, match=r"\['val_loss'\], \['loss'\]"):
        callback.on_epoch_end(1, {["val_loss", "loss"][rank]: 1.0})

    variables = [keras.Variable([1.0]) for _ in range(3)]
    reduction = GradientReduction(groups=[[v.value for v in variables[:2]]])
    assert reduction._grouped([0, 1, 2], variables) == [[0, 1], [2]]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.register_local_var(variables[0].value)
    optimizer.apply([tf.constant([rank + 1.0])] * 3, variables)
    assert [float(v[0]) for v in variables] == [1.0 - (rank + 1.0) / 2, -2.0, -2.0]
    hvd.shutdown()


def test_metrics_and_variables_of_tensorflow_in_those_of_keras():
    _run(_metrics_and_groups)


def _on_another_device():
    hvd.init()
    with tf.device("/GPU:0"):
        graph = tf.function(lambda x: (hvd.allreduce(x), hvd.size_op())).get_concrete_function(
            tf.TensorSpec([])
        )
    ours = [node for node in graph.graph.get_operations() if node.type.startswith("Aiacc")]
    assert {node.type for node in ours} == {"AiaccAllreduce", "AiaccToken", "AiaccTopology"}
    assert {tf.DeviceSpec.from_string(node.device).device_type for node in ours} == {"CPU"}
    hvd.shutdown()


def test_the_ops_are_placed_where_their_kernels_are():
    _run(_on_another_device)


def _torch_and_tensorflow():
    import torch

    import aiacc.torch

    hvd.init()
    rank = hvd.rank()
    weight = torch.nn.Parameter(torch.zeros(2))
    theirs = aiacc.torch.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.5), named_parameters=[("weight", weight)]
    )
    variable = keras.Variable([0.0, 0.0])
    ours = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    ours.build([variable])

    @tf.function
    def step(target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((variable - target) ** 2) / 2
        ours.apply([tape.gradient(loss, variable.value)], [variable])

    for number in range(1, 5):
        theirs.zero_grad()
        (((weight - (rank + 1.0)) ** 2).sum() / 2).backward()
        theirs.step()
        step(tf.constant([rank + 1.0] * 2))
        expected = [1.5 * (1.0 - 0.5**number)] * 2
        assert weight.tolist() == variable.numpy().tolist() == expected
    hvd.shutdown()


def test_training_with_torch_in_turn():
    _run(_torch_and_tensorflow)
