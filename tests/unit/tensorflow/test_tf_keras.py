"""What becomes of optimizers of tf_keras, and which Keras is chosen, without other ranks."""

import copy
import pickle
import sys

import keras
import pytest
import tensorflow as tf
import tf_keras

import aiacc.tensorflow as hvd
from aiacc.tensorflow.keras.distributed import Distributed
from tests.support.programs import run_program

LEGACY = tf_keras.optimizers.legacy
LSO = tf_keras.mixed_precision.LossScaleOptimizer


@pytest.mark.parametrize("make", [tf_keras.optimizers.SGD, LEGACY.SGD])
def test_a_loss_scale_optimizer_is_distributed_by_what_is_in_it(make):
    scaled = LSO(hvd.DistributedOptimizer(make()))
    assert isinstance(scaled, LSO)
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(scaled)
    other = LSO(make())
    assert type(other).__mro__.index(LSO) == type(scaled).__mro__.index(LSO) - 3
    other._optimizer = hvd.DistributedOptimizer(make())  # it was not told of this one
    variable = tf.Variable([1.0])
    with pytest.raises(ValueError, match="that it was put into later"):
        other.apply_gradients([(tf.constant([1.0]), variable)])


def test_names_and_optimizers_of_both_in_one_process():
    plain = tf_keras.optimizers.SGD()
    wrapped = hvd.DistributedOptimizer(plain, name="mine")
    assert wrapped is plain
    assert wrapped.name == "mine"
    scaled = hvd.DistributedOptimizer(LSO(tf_keras.optimizers.SGD()), name="mine")
    assert scaled.inner_optimizer.name == "mine"
    for wanted in (keras.optimizers.SGD, tf_keras.optimizers.SGD, LEGACY.SGD):
        assert isinstance(hvd.DistributedOptimizer(wanted()), wanted)
    with pytest.raises(ValueError, match=r"builtins\.str \(expected an optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")


@pytest.mark.usefixtures("job_of_one")
def test_pickles_are_of_the_original_class_and_copies_are_distributed():
    def scaled(rate):
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))

    def inner(optimizer):  # which counts; before Keras 3.11 the one around it does not
        return getattr(optimizer, "inner_optimizer", optimizer)

    for make in (keras.optimizers.SGD, keras.optimizers.AdamW, scaled):
        optimizer, variable = make(0.25), tf.Variable([1.0])
        original = type(optimizer)
        inner(optimizer).iterations.assign(3)
        wrapped = hvd.DistributedOptimizer(optimizer)
        for again in (pickle.loads(pickle.dumps(wrapped)), pickle.loads(pickle.dumps(wrapped, 2))):
            assert type(again) is original
            assert int(inner(again).iterations.numpy()) == 3
            assert type(inner(again)).__module__.startswith("keras")
        for copied in (copy.copy(wrapped), copy.deepcopy(wrapped), wrapped):
            assert type(copied).__mro__[2:4] == (Distributed, original)
            copied.apply_gradients([(tf.constant([1.0]), variable)])
        assert int(inner(wrapped).iterations.numpy()) >= 4
    for make in (tf_keras.optimizers.SGD, LEGACY.SGD):  # of which Keras pickles none
        for optimizer in (make(), hvd.DistributedOptimizer(make())):
            with pytest.raises((TypeError, AttributeError), match=r"weakref|local object"):
                pickle.dumps(optimizer)
        assert isinstance(copy.copy(optimizer), Distributed)


def _python(program, **environment):
    """Words of a process with nothing of this one's environment."""
    alone = {"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    return run_program([sys.executable, "-c", program], env=alone, check=True).stdout.split()


_CHOICE = """
import sys, tensorflow as tf, aiacc.keras, aiacc.tensorflow as for_tensorflow
import aiacc.tensorflow.keras as hvd
print(hvd.DistributedOptimizer(tf.keras.optimizers.SGD()).__module__)
for base, ours in (
    (tf.keras.callbacks.Callback, hvd.callbacks.MetricAverageCallback),
    (tf.keras.callbacks.Callback, aiacc.keras.callbacks.BestModelCheckpoint),
    (tf.keras.layers.BatchNormalization, hvd.SyncBatchNormalization),
    (tf.keras.layers.BatchNormalization, for_tensorflow.SyncBatchNormalization),
):
    assert issubclass(ours, base), ours.__mro__
print(*(name for name in ("keras", "tf_keras") if name in sys.modules))
"""
_REFUSED = """
for arguments in ({"renorm": True}, {"virtual_batch_size": 2}, {"axis": [1, 2]}):
    try:
        hvd.SyncBatchNormalization(**arguments)
    except ValueError as error:
        print(str(error).split()[2])
"""


def test_the_keras_of_tensorflow_is_chosen_with_what_it_refuses():
    assert _python(_CHOICE) == ["keras.src.optimizers.sgd", "keras"]
    found = _python(_CHOICE + _REFUSED, TF_USE_LEGACY_KERAS="1", KERAS_BACKEND="torch")
    normalisation_cannot = ["renorm=True", "virtual_batch_size=2", "axis=[1,"]
    assert found == ["tf_keras.src.optimizers.sgd", "tf_keras", *normalisation_cannot]
