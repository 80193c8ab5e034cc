"""What optimizers make of their arguments, without other ranks."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import aiacc.keras as for_keras
import aiacc.tensorflow as hvd
from aiacc.tensorflow.gradients import variables_of

#: Whether a LossScaleOptimizer tells the optimizer in it when it is made.
TELLS = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 10)


def test_local_layers_have_to_be_built():
    built, other, unbuilt = (keras.layers.Dense(1, name=name) for name in ("a", "b", "c"))
    built.build([None, 2])
    other.build([None, 2])
    assert variables_of(None) == []
    assert variables_of(built) == built.trainable_weights
    assert variables_of((other, built)) == other.trainable_weights + built.trainable_weights
    with pytest.raises(ValueError, match=r"'c', which is not built .*model\.build"):
        variables_of([built, unbuilt])
    with pytest.raises(ValueError, match="expected layers of Keras"):
        variables_of(["dense"])


def test_the_order_of_arguments_of_horovod_keras():
    # The ninth is num_groups, where that of horovod.tensorflow.keras is backward_passes_per_step.
    before = ["name", "", "", hvd.Compression.none, False, 1.0, hvd.Average]
    for function, argument in (
        (for_keras.DistributedOptimizer, "groups=-1"),
        (hvd.keras.DistributedOptimizer, "backward_passes_per_step=-1"),
    ):
        with pytest.raises(ValueError, match=argument):
            function(keras.optimizers.SGD(), *before, -1)


def test_a_loss_scale_optimizer_has_to_know_of_it_when_it_is_made():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    scaled.inner_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    variable = keras.Variable([1.0])
    with pytest.raises(ValueError, match=r"use DistributedOptimizer\(LossScaleOptimizer"):
        scaled.apply([tf.constant([1.0])], [variable])
    built = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    built.inner_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    built.build([variable])  # in time
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(built)


@pytest.mark.skipif(not TELLS, reason="Keras tells nothing of it before 3.10")
def test_a_loss_scale_optimizer_is_distributed_by_what_is_in_it():
    scaled = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    assert isinstance(scaled, keras.optimizers.LossScaleOptimizer)
    assert type(scaled).__name__ == "LossScaleOptimizer"
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(scaled)
    plain = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert type(plain) is keras.optimizers.LossScaleOptimizer
