"""A LossScaleOptimizer around a DistributedOptimizer, or in it: the ranks skip the same steps."""

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.learning.keras_training import (
    FAMILIES,
    LSO,
    NORMED,
    OF_KERAS_2,
    STEPS,
    TELLS,
    check_equal,
    fitted,
    in_each_keras,
    in_tensorflow,
    is_same,
    keras,
    step_of,
)

pytestmark = pytest.mark.skipif(not TELLS, reason="Keras tells nothing of it before 3.10")

#: Of each step that of rank 0 and that of rank 1: the second and the fourth are to be skipped.
GRADIENTS = [(1.0, 5.0), (2.0, np.inf), (4.0, 8.0), (np.nan, 1.0), (1.0, 1.0), (3.0, 1.0)]


def _around(optimizer, **options):
    return LSO(hvd.DistributedOptimizer(optimizer, **options), initial_scale=16.0)


def _inside(optimizer, **options):
    return hvd.DistributedOptimizer(LSO(optimizer, initial_scale=16.0), **options)


def _variable():
    return (tf if OF_KERAS_2 else keras).Variable([1.0])


def _scaled(optimizer, *gradients):
    """As the optimizer takes them: that of Keras 2 takes them without the scale."""
    constants = [tf.constant([gradient]) for gradient in gradients]
    return constants if OF_KERAS_2 else map(optimizer.scale_loss, constants)


def _scale(optimizer):
    return float(optimizer.loss_scale if OF_KERAS_2 else optimizer.dynamic_scale)


@in_each_keras
def test_both_orders_skip_a_step_on_all_ranks():
    rank = hvd.rank()
    for of in FAMILIES:
        for order in (_around, _inside):
            for compiled in (False, True):
                optimizer, shared, local = order(of.SGD(0.1)), _variable(), _variable()
                optimizer.register_local_var(local)
                step = step_of(optimizer, [shared, local], compiled)
                found = []
                for grads in GRADIENTS:
                    step(*_scaled(optimizer, grads[rank], 1.0))
                    found.append(shared.numpy().item())
                # Every step counts as its gradients do: 3, -, 6, -, 1, 2.
                np.testing.assert_allclose(found, [0.7, 0.7, 0.1, 0.1, 0.0, -0.2], atol=1e-6)
                np.testing.assert_allclose(local.numpy(), [0.8], atol=1e-6)  # four halves
                assert _scale(optimizer) == 4.0  # halved twice
                assert OF_KERAS_2 or int(optimizer.iterations.numpy()) == 4
                step(*_scaled(optimizer, 1.0, np.inf if rank else 1.0))
                assert _scale(optimizer) == 2.0  # on both ranks
                np.testing.assert_allclose(shared.numpy(), [-0.2], atol=1e-6)
                if OF_KERAS_2:
                    pairs = [(tf.constant([1.0 + rank]), shared)]
                    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
                    np.testing.assert_allclose(shared.numpy(), [-0.3 - 0.1 * rank], atol=1e-6)
                optimizer.learning_rate = 0.5
                assert float(optimizer.inner_optimizer.learning_rate) == 0.5


@in_tensorflow
def test_one_order_does_what_the_other_does():
    """With other optimizers, compression and passes."""
    for options in (
        {"scale_local_gradients": False},
        {"compression": hvd.Compression.fp16, "op": hvd.Sum},
        {"backward_passes_per_step": 2},
    ):
        for compiled in (False, True):
            found = []
            for order in (_around, _inside):
                optimizer, variable = order(keras.optimizers.Adam(0.1), **options), _variable()
                step = step_of(optimizer, [variable], compiled)
                for grads in GRADIENTS:
                    step(*_scaled(optimizer, grads[hvd.rank()]))
                    found.append(variable.numpy().item())
            assert found[: len(GRADIENTS)] == found[len(GRADIENTS) :]
            assert len(set(found)) > 1
            assert is_same(found)

    # The optimizer inside may also be used by itself.
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    LSO(inner)
    variable = _variable()
    inner.apply([tf.constant([2.0 * hvd.rank()])], [variable])
    assert variable.numpy() == pytest.approx(0.9)


@in_each_keras
def test_mixed_precision_under_fit():
    """Keras puts a LossScaleOptimizer around an optimizer, and leaves one that is there."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    for of in FAMILIES:
        models = [
            fitted(NORMED, hvd.DistributedOptimizer(wrap(of.Adam(0.05))))
            for wrap in (lambda plain: plain, LSO)
        ]
        assert all(isinstance(model.optimizer, LSO) for model in models)
        assert int(models[0].optimizer.iterations) == STEPS
        check_equal(models[0].get_weights(), models[1].get_weights())
        assert all(map(is_same, models[0].weights))
