"""`SyncBatchNormalization`: two ranks have the results of one process with both batches."""

import keras
import numpy as np
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.learning.keras_training import RANKS, in_tensorflow

#: Images of each rank.
ROWS = (3, 5)


def _images(rank, rows=ROWS, dtype="float32"):
    """Of shape (rows of the rank, 4, 4, 3), far from zero and on another scale on each rank."""
    values = np.random.default_rng(rank).normal(size=(rows[rank], 4, 4, 3))
    return (values * (rank + 1) + 100.0).astype(dtype)


def _weights_of_loss(rank, rows=ROWS):
    return np.random.default_rng(10 + rank).normal(size=(rows[rank], 4, 4, 3))


def _step(layer, images, weights, mask=None):
    """Output, gradients of input, gamma and beta of a weighted sum of the outputs."""
    images = tf.convert_to_tensor(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        output = layer(images, training=True, mask=mask)
        loss = tf.reduce_sum(tf.cast(output, tf.float64) * weights)
    variables = [variable.value for variable in layer.trainable_variables]
    return output, *tape.gradient(loss, [images, *variables])


def _as_one_process(rows, dtype, axis, compiled, masked):
    """The rank's part of what one process gives, and what the ranks give."""
    parts = [_images(rank, rows, dtype) for rank in range(RANKS)]
    weights = [_weights_of_loss(rank, rows) for rank in range(RANKS)]
    masks = [part[..., 0] > 100.0 for part in parts] if masked else [None] * RANKS
    rank = hvd.rank()
    alone = keras.layers.BatchNormalization(axis, dtype=dtype)
    whole = np.concatenate(masks) if masked else None
    expected = _step(alone, np.concatenate(parts), np.concatenate(weights), whole)
    synced = hvd.SyncBatchNormalization(axis=axis, dtype=dtype)
    synced.build(parts[rank].shape)
    step = tf.function(_step) if compiled else _step
    found = step(synced, parts[rank], weights[rank], masks[rank])
    begin = sum(rows[:rank])
    mine = slice(begin, begin + rows[rank])
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        yield ours, theirs[mine]
    for ours, theirs in zip(found[2:], expected[2:], strict=True):  # those of the ranks add up
        yield hvd.allreduce(ours, op=hvd.Sum), theirs
    for ours, theirs in zip(
        synced.non_trainable_variables, alone.non_trainable_variables, strict=True
    ):
        yield ours.numpy(), theirs.numpy()


@in_tensorflow
def test_ranks_normalise_as_one_process():
    for case in (
        (ROWS, "float32", -1, False, False),
        (ROWS, "float32", -1, True, True),
        (ROWS, "float64", 1, True, False),
        ((0, 4), "float32", -1, True, False),  # a rank without data
    ):
        for ours, theirs in _as_one_process(*case):
            close = 1e-9 if case[1] == "float64" else 3e-4
            np.testing.assert_allclose(ours, theirs, rtol=close, atol=close, err_msg=str(case))

    layer = hvd.SyncBatchNormalization(dtype="mixed_float16")
    output = layer(_images(hvd.rank()), training=True)
    assert output.dtype == tf.float16
    mean = tf.reduce_mean(tf.cast(output, tf.float32), [0, 1, 2])
    assert np.abs(mean).max() > 0.01  # for it is the mean of both ranks that becomes zero

    before = [variable.numpy() for variable in layer.variables]
    layer.trainable = False
    layer(_images(hvd.rank()), training=True)
    if hvd.rank() == 0:  # no collective
        layer(_images(0), training=False)
    for variable, value in zip(layer.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    alone = hvd.add_process_set([1])
    local = hvd.SyncBatchNormalization(process_set=alone)
    local(_images(hvd.rank()), training=True)
    everyones = hvd.allgather(local.moving_mean.numpy()[None])
    assert not np.allclose(everyones[0], everyones[1])
