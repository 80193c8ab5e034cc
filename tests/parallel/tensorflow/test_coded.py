"""Tensors of TensorFlow that travel coded."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.codes import check_sum


def _given(rank):
    return np.random.default_rng(rank).standard_normal((300, 200)).astype(np.float32)


@on_ranks(2, env={"AIACC_ENGINE": "tcp"})
def test_gradients():
    inputs = [_given(rank) for rank in range(hvd.size())]
    for name in ("int8", "int4"):
        call = tf.function(
            lambda t, name=name: hvd.allreduce(t, op=hvd.Average, name=name, compression=name)
        )
        result = call(tf.constant(inputs[hvd.rank()])).numpy()
        check_sum(name, result, inputs, hvd.size())
    # Of integers and doubles nothing is coded.
    for dtype in (tf.int32, tf.float64):
        total = hvd.allreduce(
            tf.ones(5, dtype), op=hvd.Sum, name=f"ones.{dtype.name}", compression="int8"
        )
        assert np.array_equal(total, np.full(5, hvd.size()))

    weight, bias = tf.Variable(inputs[hvd.rank()]), tf.Variable(tf.ones(5) * (hvd.rank() + 1))

    def compute():
        plain = tf.GradientTape()
        with hvd.DistributedGradientTape(plain, compression=hvd.Compression.int8) as tape:
            loss = tf.reduce_sum(weight * weight) / 2 + tf.reduce_sum(bias * bias) / 2
        return tape.gradient(loss, [weight, bias])

    for of_weight, of_bias in (compute(), tf.function(compute)()):
        check_sum("int8", of_weight.numpy(), inputs, hvd.size())
        assert np.array_equal(of_bias, np.full(5, (hvd.size() + 1) / 2))  # small: it stays dense

    for lossy in ("int4", "mstopk:density=0.01"):
        with pytest.raises(ValueError, match="no error feedback"):
            hvd.DistributedGradientTape(tf.GradientTape(), compression=lossy)
    with pytest.raises(ValueError, match="int9"):
        hvd.allreduce(tf.ones(3), compression="int9")


@on_ranks(1, launcher="python")
def test_one_rank_alone_codes_nothing():
    weight = tf.Variable(_given(0))
    with hvd.DistributedGradientTape(tf.GradientTape(), compression="int8") as tape:
        loss = tf.reduce_sum(weight * weight) / 2
    assert np.array_equal(tape.gradient(loss, weight), _given(0))
    assert np.array_equal(hvd.allreduce(weight, compression=hvd.Compression.bf16), _given(0))


#: Each rank is on a host of its own.
@on_ranks(2, env={"AIACC_LOCAL_RANK": "0", "AIACC_LOCAL_SIZE": "1"})
def test_a_codec_that_is_for_nothing_is_said_once():
    weight, total = tf.Variable(tf.ones([4, 4])), tf.Variable(tf.ones(3))
    plain = tf.GradientTape(persistent=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hvd.DistributedGradientTape(plain, compression="int8") as tape:
            loss = tf.reduce_sum(weight) + tf.reduce_sum(total)
        for _ in range(2):
            tape.gradient(loss, [weight, total])
    said = [str(one.message) for one in caught if "compress" in str(one.message)]
    assert len(said) == (hvd.rank() == 0), said
    assert all("2 gradients: 1 of fewer than 16384 elements, 1 of" in text for text in said)
