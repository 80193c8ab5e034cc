"""Wrong arguments of TensorFlow's and Keras's functions are refused in the words of all others."""

import inspect

import keras
import pytest
import tensorflow as tf

import aiacc.keras as of_keras
import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as of_tf_keras
from aiacc.keras.lars import LARS
from aiacc.tensorflow.keras import callbacks
from tests.support.wrong_arguments import unexplained

ROWS = tf.ones((4, 2))
ANY_TENSOR = dict.fromkeys(("tensor", "value"), "5 [0] -1 1.5 True")
SGD = keras.optimizers.SGD()
CALLS = [
    *(
        (getattr(front, name), {"tensor": ROWS, "tensors": [ROWS], "value": ROWS, "root_rank": 0})
        for front in (hvd, of_tf_keras)
        for name in front.__all__
        if inspect.isfunction(function := getattr(front, name))
        if {"tensor", "tensors", "value"} & set(inspect.signature(function).parameters)
    ),
    (hvd.broadcast_variables, {"variables": [], "root_rank": 0}),
    (hvd.broadcast_, {"variables": [], "root_rank": 0}),
    (hvd.broadcast_global_variables, {}),
    (hvd.broadcast_object, {"obj": 1}),
    (hvd.broadcast_object_fn, {}),
    (hvd.allgather_object, {"obj": 1}),
    (hvd.barrier, {}),
    (hvd.size_op, {}),
    (hvd.rank_op, {}),
    (hvd.DistributedGradientTape, {"gradtape": tf.GradientTape()}),
    (hvd.PartialDistributedGradientTape, {"gradtape": tf.GradientTape()}),
    (hvd.DistributedOptimizer, {"optimizer": tf.compat.v1.train.AdamOptimizer()}),
    (hvd.BroadcastGlobalVariablesHook, {}),
    (of_keras.DistributedOptimizer, {"optimizer": SGD}),
    (of_tf_keras.DistributedOptimizer, {"optimizer": SGD}),
    (of_tf_keras.PartialDistributedOptimizer, {"optimizer": SGD}),
    (of_tf_keras.SyncBatchNormalization, {}),
    (of_tf_keras.load_model, {"filepath": "none.keras"}),
    (callbacks.BroadcastGlobalVariablesCallback, {"root_rank": 0}),
    (callbacks.LearningRateScheduleCallback, {"initial_lr": 1.0, "multiplier": 1.0}),
    (callbacks.LearningRateWarmupCallback, {"initial_lr": 1.0}),
    (LARS, {}),
]


@pytest.fixture(autouse=True)
def job_of_one():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(("function", "given"), CALLS)
def test_each_wrong_argument_is_refused(function, given):
    names = inspect.signature(function).parameters
    right = dict(ANY_TENSOR)
    if "op" in names:
        right["op"] = "None 5" if "average" in names else "5 -1"
    if function is LARS:
        right |= {"weight_decay": "None 5 1.5", "exclude": "x"}
    if function is of_tf_keras.SyncBatchNormalization:
        right["fused"] = "any"
    given = {name: value for name, value in given.items() if name in names}
    assert unexplained(function, given, **right) == []
