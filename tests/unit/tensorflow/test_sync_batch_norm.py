"""Statistics of batches that are added up, and what the layer refuses, without other ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.tensorflow.keras.sync_batch_norm import local_sums, statistics_of

BATCH = np.random.default_rng(1).normal(1000.0, 2.0, size=(7, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("parts", [(7,), (3, 4), (0, 7), (1, 2, 4)])
def test_sums_of_parts_give_the_statistics_of_the_whole(parts, masked):
    mask = BATCH[..., 0] > 1000.0
    ends = np.cumsum(parts)[:-1]
    pieces = zip(np.split(BATCH, ends), np.split(mask, ends), strict=True)
    sums = [local_sums(tf.constant(x), [0, 1], m if masked else None) for x, m in pieces]
    assert sums[0].dtype == tf.float64
    assert sums[0].shape == [3, 3]
    mean, variance = statistics_of(sum(sums))
    values = BATCH[mask] if masked else BATCH.reshape(-1, 3)
    np.testing.assert_allclose(mean, values.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(variance, values.var(0, dtype=np.float64), rtol=1e-4)


def test_statistics_of_nothing_are_zeros():
    for mask in (None, np.zeros([7, 5], bool)):
        batch = tf.zeros([0, 5, 3]) if mask is None else tf.constant(BATCH)
        mean, variance = statistics_of(local_sums(batch, [0, 1], mask))
        assert mean.numpy().tolist() == variance.numpy().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("arguments", [{"fused": True}, {"renorm": True}])
def test_what_it_cannot_do_is_refused(arguments):
    with pytest.raises(ValueError, match=r"=True \(expected False\)"):
        hvd.SyncBatchNormalization(**arguments)


def test_a_mask_of_another_shape_and_a_job_that_is_none_are_refused():
    with pytest.raises(ValueError, match="expected all dimensions but the last"):
        hvd.SyncBatchNormalization()(BATCH, training=True, mask=np.ones([7], bool))
    with pytest.raises(tf.errors.AbortedError, match=r"hvd\.init\(\)"):
        hvd.SyncBatchNormalization()(BATCH, training=True)
