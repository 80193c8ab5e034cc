"""A LossScaleOptimizer around a DistributedOptimizer, or in it: the ranks skip the same steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from tests.support.learning.keras_training import DENSE, in_tensorflow, is_same, new
from tests.unit.tensorflow.test_optimizer_arguments import TELLS

pytestmark = pytest.mark.skipif(not TELLS, reason="Keras tells nothing of it before 3.10")

#: Of each step that of rank 0 and that of rank 1: the second and the fourth are to be skipped.
GRADIENTS = [(1.0, 5.0), (2.0, np.inf), (4.0, 8.0), (np.nan, 1.0), (1.0, 1.0), (3.0, 1.0)]
LSO = keras.optimizers.LossScaleOptimizer


def _around(optimizer, **options):
    return LSO(hvd.DistributedOptimizer(optimizer, **options), initial_scale=4.0)


def _inside(optimizer, **options):
    return hvd.DistributedOptimizer(LSO(optimizer, initial_scale=4.0), **options)


def _steps(optimizer, compiled):
    """The variable after every step, with gradients that have the loss scale in them."""
    variable = keras.Variable([1.0])

    def apply(grad):
        optimizer.apply([optimizer.scale_loss(grad)], [variable])

    step = tf.function(apply) if compiled else apply
    values = []
    for grads in GRADIENTS:
        step(tf.constant([grads[hvd.rank()]]))
        values.append(variable.numpy().item())
    return values


@in_tensorflow
def test_both_orders_skip_a_step_on_all_ranks():
    # Without momentum every step counts as its gradients do: 3, -, 6, -, 1, 2.
    expected = np.array([0.7, 0.7, 0.1, 0.1, 0.0, -0.2])
    for compiled in (False, True):
        for order in (_around, _inside):
            optimizer = order(keras.optimizers.SGD(0.1))
            np.testing.assert_allclose(_steps(optimizer, compiled), expected, atol=1e-6)
            assert optimizer.dynamic_scale.numpy() == 1.0  # halved twice
            assert int(optimizer.iterations) == 4
        # Other optimizers, compression and passes: one order does what the other does.
        for options in (
            {},
            {"compression": hvd.Compression.fp16, "op": hvd.Sum},
            {"backward_passes_per_step": 2},
        ):
            around, inside = (
                _steps(order(keras.optimizers.Adam(0.1), **options), compiled)
                for order in (_around, _inside)
            )
            assert around == inside
            assert len(set(around)) > 1
            assert is_same(around)

    # The optimizer inside may also be used by itself.
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    LSO(inner)
    variable = keras.Variable([1.0])
    inner.apply([tf.constant([2.0 * hvd.rank()])], [variable])
    assert variable.numpy() == pytest.approx(0.9)


def _step_of(optimizer, variables, compiled):
    def apply(*grads):
        optimizer.apply(list(grads), variables)

    return tf.function(apply) if compiled else apply


@in_tensorflow
def test_gradients_of_local_variables_count_for_all_ranks():
    for order in (_around, _inside):
        for compiled in (False, True):
            optimizer = order(keras.optimizers.SGD(0.1), scale_local_gradients=False)
            local, shared = keras.Variable([1.0]), keras.Variable([1.0])
            optimizer.register_local_var(local)

            step = _step_of(optimizer, [local, shared], compiled)
            own = tf.constant([4.0 * (hvd.rank() + 1)])
            step(own, own)
            step(tf.constant([np.inf if hvd.rank() else 1.0]), own)  # not finite on one rank
            assert optimizer.dynamic_scale.numpy() == 2.0
            assert local.numpy() == pytest.approx(1 - 0.1 * (hvd.rank() + 1))
            assert shared.numpy() == pytest.approx(1 - 0.1 * 1.5)


@in_tensorflow
def test_mixed_precision_under_fit(tmp_path):
    rank = hvd.rank()
    keras.mixed_precision.set_global_policy("mixed_float16")
    inputs, targets = (part.reshape(16, -1) for part in DENSE.data(rank))

    def fit(optimizer):
        model = new(DENSE)
        model.compile(optimizer, "mse")
        assert isinstance(model.optimizer, LSO)
        model.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
        model.optimizer.learning_rate = 0.025
        assert float(model.optimizer.inner_optimizer.learning_rate) == pytest.approx(0.025)
        model.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
        assert float(model.optimizer.learning_rate) == pytest.approx(0.025)
        return model

    # Keras puts a LossScaleOptimizer around the one, and leaves the other.
    by_keras = fit(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)))
    inside = fit(hvd.DistributedOptimizer(LSO(keras.optimizers.Adam(0.05))))
    assert int(by_keras.optimizer.iterations) == 8
    for ours, theirs in zip(by_keras.variables, inside.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert is_same(ours)

    path = f"{tmp_path}/{rank}.keras"
    by_keras.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is LSO
    assert type(loaded.optimizer.inner_optimizer) is keras.optimizers.Adam
    again = hvd_keras.load_model(path)
    pairs = zip(again.optimizer.variables, by_keras.optimizer.variables, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)
    for model in (again, by_keras):
        model.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
    for ours, theirs in zip(again.variables, by_keras.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
