"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.reduce_ops import Sum
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.keras.choice import keras
from aiacc.tensorflow.ops.allreduce import allreduce


@keras.saving.register_keras_serializable("aiacc")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` with the statistics of all ranks while training.

    Batches may be of different sizes on the ranks, also empty. Output and gradients are those of
    one process that has the batches of all ranks. Gradients of gamma and beta are those of this
    rank's outputs, as `DistributedOptimizer` expects them. The moving statistics are the same on
    all ranks.

    Collective: every rank of ``process_set``, in forward and in backward while training.
    Blocks: until the statistics of all ranks are there, outside of graphs. In a graph it blocks
        nothing.
    """

    def __init__(
        self,
        fused: bool = False,
        *,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        """Make the layer.

        Args:
            fused: False; Horovod has it.
            process_set: Ranks that take part. It is not saved with a model.
            **kwargs: Those of `keras.layers.BatchNormalization`, except renorm and, of tf_keras,
                several axes, virtual_batch_size and adjustment.

        Raises:
            TypeError: ``process_set`` is no ProcessSet.
            ValueError: One that is excepted, or ``fused``.
        """
        arguments.check({"process_set": process_set})
        if fused:
            raise ValueError(f"[tensorflow] SyncBatchNormalization: fused={fused} (expected False)")
        for name in ("renorm", "virtual_batch_size", "adjustment"):
            if kwargs.get(name):
                raise ValueError(
                    f"[tensorflow] SyncBatchNormalization: {name}={kwargs[name]} (expected "
                    f"{'False' if name == 'renorm' else 'None'}); use "
                    "keras.layers.BatchNormalization for it"
                )
        super().__init__(**kwargs)
        if not isinstance(self.axis, int) and len(self.axis) != 1:
            raise ValueError(
                f"[tensorflow] SyncBatchNormalization: axis={list(self.axis)} (expected one "
                "axis); use keras.layers.BatchNormalization for several"
            )
        self._process_set = process_set

    @node.plain
    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalise ``inputs``.

        Args:
            inputs: Floating-point tensor of two dimensions or more.
            training: Use the statistics of this batch, and track them; else those tracked before.
            mask: Bool tensor of the shape of ``inputs`` without the last dimension: what shall
                count; None: everything.

        Raises:
            ValueError: A mask of another number of dimensions.
            tf.errors.OpError: The ranks could not exchange their statistics.
        """
        taking_part = training and self.trainable and self._process_set.included() is not False
        if not taking_part:
            return super().call(inputs, training=training, mask=mask)
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            raise ValueError(
                f"[tensorflow] SyncBatchNormalization: mask of shape {mask.shape} for inputs of "
                f"shape {inputs.shape} (expected all dimensions but the last)"
            )
        # As in Keras: 16 bits are too few for what follows.
        precise = tf.cast(inputs, tf.float64 if inputs.dtype == "float64" else tf.float32)
        dimensions = len(precise.shape)
        axis = self.axis if isinstance(self.axis, int) else self.axis[0]  # tf_keras makes it a list
        axes = [other for other in range(dimensions) if other != axis % dimensions]
        sums = local_sums(precise, axes, mask)
        total = allreduce(sums, op=Sum, process_set=self._process_set)
        mean, variance = (tf.cast(value, precise.dtype) for value in statistics_of(total))
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            update = tf.cast(value, moving.dtype)
            moving.assign(moving * self.momentum + update * (1.0 - self.momentum))
        shape = [-1 if other == axis % dimensions else 1 for other in range(dimensions)]
        beta, gamma = self.beta if self.center else None, self.gamma if self.scale else None
        outputs = tf.nn.batch_normalization(
            precise,
            *(
                None if value is None else tf.reshape(tf.cast(value, precise.dtype), shape)
                for value in (mean, variance, beta, gamma)
            ),
            self.epsilon,
        )
        return tf.cast(outputs, self.compute_dtype)


def local_sums(batch: Any, axes: Sequence[int], mask: Any = None) -> Any:
    """Per channel the number of values, their sum and that of their squares.

    Differentiable. A float64 tensor of shape (3, channels), which may be added to those of other
    batches: 64 bits are enough for the difference of large sums.

    Args:
        batch: Tensor of float32 or float64.
        axes: All but that of the channels.
        mask: Bool tensor of the shape of ``batch`` without the last dimension, or None.
    """
    (channel_axis,) = set(range(len(batch.shape))) - set(axes)
    channels = batch.shape[channel_axis]
    weights: Any = 1.0
    if mask is None:
        values = tf.size(batch, out_type=tf.int64) // max(channels, 1)
        count = tf.fill([channels], tf.cast(values, tf.float64))
    else:
        weights = tf.broadcast_to(tf.cast(mask, batch.dtype)[..., None], tf.shape(batch))
        count = tf.reduce_sum(tf.cast(weights, tf.float64), axes)
    # The squares are summed up around the mean, which the precision of the batch is enough for.
    sums = tf.cast(tf.reduce_sum(batch * weights, axes), tf.float64)
    mean = sums / tf.maximum(count, 1.0)
    shape = [-1 if axis == channel_axis else 1 for axis in range(len(batch.shape))]
    differences = batch - tf.reshape(tf.cast(mean, batch.dtype), shape)
    around = tf.cast(tf.reduce_sum(weights * tf.square(differences), axes), tf.float64)
    return tf.stack([count, sums, around + sums * mean])


def statistics_of(sums: Any) -> tuple[Any, Any]:
    """Mean and biased variance per channel of what `local_sums` gave, in float64; 0 of nothing."""
    count, total, squares = tf.unstack(sums)
    divisor = tf.maximum(count, 1.0)
    mean = total / divisor
    return mean, tf.maximum(squares / divisor - tf.square(mean), 0.0)
