"""Keras: metrics, local variables, devices, and torch in the same processes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc.tensorflow.gradients import GradientReduction
from tests.support.learning.keras_training import in_tensorflow


@in_tensorflow
def test_metrics_and_variables_of_tensorflow_in_those_of_keras():
    rank = hvd.rank()
    callback = hvd_keras.callbacks.MetricAverageCallback()
    logs = {"loss": np.float32(rank), "count": 2**40 + 2 * rank, "text": "no number", "none": None}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.5, "count": 2.0**40 + 1, "text": "no number", "none": None}
    kinds = [
        np.array([[1, 3], [5, 7]]),
        np.full(2, rank, np.float32),
        tf.constant([rank, 1.0], tf.bfloat16),
        tf.constant([True, rank == 0]),
        tf.constant(float(rank), tf.bfloat16),
        [1.0, 2.0 * rank],
    ]
    logs = dict(enumerate(kinds))
    callback.on_epoch_end(1, logs)
    found = [np.asarray(value, np.float64).tolist() for value in logs.values()]
    assert found == [[[1, 3], [5, 7]], [0.5, 0.5], [0.5, 1.0], [1.0, 0.5], 0.5, [1.0, 1.0]]
    assert [getattr(v, "dtype", list) for v in logs.values()] == [
        *(np.float64, np.float32, tf.bfloat16, tf.float64, tf.bfloat16, list)
    ]
    for logs in ({"val_loss": 1.0}, {"loss": np.ones(2)}):
        with pytest.raises(ValueError, match=r"\['(val_loss|loss\[2\])'\], \['loss'\]"):
            callback.on_epoch_end(2, {"loss": 1.0} if rank else logs)
    callback.on_epoch_end(3, {})

    variables = [keras.Variable([1.0]) for _ in range(3)]
    reduction = GradientReduction(groups=[[v.value for v in variables[:2]]])
    assert reduction._grouped([0, 1, 2], variables) == [[0, 1], [2]]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.register_local_var(variables[0].value)
    optimizer.apply([tf.constant([rank + 1.0])] * 3, variables)
    assert [float(v[0]) for v in variables] == [1.0 - (rank + 1.0) / 2, -2.0, -2.0]


@in_tensorflow
def test_the_ops_are_placed_where_their_kernels_are():
    with tf.device("/GPU:0"):
        graph = tf.function(lambda x: (hvd.allreduce(x), hvd.size_op())).get_concrete_function(
            tf.TensorSpec([])
        )
    ours = [node for node in graph.graph.get_operations() if node.type.startswith("Aiacc")]
    assert {node.type for node in ours} == {"AiaccAllreduce", "AiaccToken", "AiaccTopology"}
    assert {tf.DeviceSpec.from_string(node.device).device_type for node in ours} == {"CPU"}


@in_tensorflow
def test_training_with_torch_in_turn():
    """They even meet each other by name."""
    import torch

    import aiacc.torch

    rank = hvd.rank()
    assert aiacc.torch.is_initialized()
    for turn in range(3):
        if rank == turn % 2:
            total = float(hvd.allreduce(1.0, op=hvd.Sum, name="mixed"))
        else:
            total = aiacc.torch.allreduce(torch.tensor(2.0), op=hvd.Sum, name="mixed").item()
        assert total == 3.0
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
    assert not aiacc.torch.is_initialized()
