"""Optimizers that are made of a distributed one, on two ranks."""

import copy

import keras
import tensorflow as tf
import tf_keras

import aiacc.tensorflow as hvd
from tests.support.learning.keras_training import in_tensorflow

LEGACY = tf_keras.optimizers.legacy
LSO = tf_keras.mixed_precision.LossScaleOptimizer


def _apply(optimizer, gradient, variable):
    optimizer.apply_gradients([(tf.constant([gradient]), variable)])


def _from_config(optimizer):
    return type(optimizer).from_config(optimizer.get_config())


@in_tensorflow
def test_copies_and_optimizers_from_a_configuration_reduce_gradients():
    sgd = (keras.optimizers.SGD, tf_keras.optimizers.SGD, LEGACY.SGD)
    makers = [
        *((lambda cls=cls: cls(0.5)) for cls in sgd),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 8.0),
        *((lambda cls=cls: LSO(cls(0.5), initial_scale=8.0)) for cls in sgd[1:]),
    ]
    for make in makers:
        plain = make()
        scale = 8.0 if hasattr(plain, "inner_optimizer") else 1.0
        of_keras_3 = isinstance(plain, keras.Optimizer)
        gradient = (hvd.rank() + 1.0) * (scale if of_keras_3 else 1.0)
        wrapped = hvd.DistributedOptimizer(plain, op=hvd.Sum)
        variable, local = ((keras.Variable if of_keras_3 else tf.Variable)([0.0]) for _ in range(2))
        wrapped.register_local_var(local)
        again = _from_config(wrapped)
        for optimizer in (again, _from_config(again)):
            variable.assign([0.0])
            _apply(optimizer, gradient, variable)
            assert variable.numpy().tolist() == [-1.5]
        third = _from_config(wrapped)
        local.assign([0.0])
        _apply(third, gradient, local)
        assert local.numpy().tolist() == [-(hvd.rank() + 1.0) / 4]

    for make in (keras.optimizers.SGD, LEGACY.SGD):  # Others of tf_keras cannot be copied.
        variable = (keras.Variable if make is keras.optimizers.SGD else tf.Variable)([0.0])
        wrapped = hvd.DistributedOptimizer(make(0.5, momentum=0.5), op=hvd.Sum)
        _apply(wrapped, hvd.rank() + 1.0, variable)
        copied = copy.deepcopy(wrapped)
        if make is keras.optimizers.SGD:
            _apply(copied, hvd.rank() + 1.0, variable)
            assert variable.numpy().tolist() == [-3.75]  # It has the momentum, too.
        else:
            other = tf.Variable([0.0])
            _apply(copied, hvd.rank() + 1.0, other)
            assert other.numpy().tolist() == [-1.5]
        assert int(copied.iterations.numpy()) == 2
        assert int(wrapped.iterations.numpy()) == 1
