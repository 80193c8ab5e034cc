"""Distributed optimizers of tf_keras (Keras 2), those of its ``legacy`` optimizers, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras

from aiacc.tensorflow import node
from aiacc.tensorflow.keras.distributed import Distributed, Parts, convert


def distribute(optimizer: Any, name: str | None, parts: Parts) -> Any:
    """``optimizer`` itself, which is distributed from now on."""
    if name is not None:
        named = getattr(optimizer, "inner_optimizer", optimizer)
        legacy = isinstance(named, tf_keras.optimizers.legacy.Optimizer)
        setattr(named, "_name" if legacy else "name", name)
    convert(optimizer, _Distributed, parts)
    return optimizer


class _Distributed(Distributed):
    """What the subclass adds to the class of the optimizer that was wrapped."""

    _aiacc_scaling = tf_keras.mixed_precision.LossScaleOptimizer
    _aiacc_mark = "_is_wrapped_by_loss_scale_optimizer"

    @node.plain
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Reduce gradients over the ranks, and update the variables with them.

        Collective: every rank, with gradients of the same shapes and dtypes in the same order.
        Blocks: until it is done, outside of graphs. In a graph it blocks nothing.

        Args:
            grads_and_vars: Gradients, which may be `tf.IndexedSlices` or None (in a graph then on
                all ranks), with their variables.
            *args: Those of tf_keras.
            **kwargs: Those of tf_keras. With ``skip_gradients_aggregation=True``, or
                ``experimental_aggregate_gradients=False``, gradients are not reduced.

        Raises:
            ValueError: Called by a LossScaleOptimizer that was not noticed.
            tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree.
        """
        base: Any = super()
        this: Any = self
        parts = self._aiacc
        if parts.reduced_already:
            return base.apply_gradients(grads_and_vars, *args, **kwargs)
        self._aiacc_refuse_around()
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        if pairs and parts.passes.several:  # which apply gradients in a branch of the graph
            legacy = isinstance(self, tf_keras.optimizers.legacy.Optimizer)
            with tf.init_scope():
                (this._create_all_weights if legacy else this.build)(variables)
        if kwargs.get("skip_gradients_aggregation") or not kwargs.get(
            "experimental_aggregate_gradients", True
        ):
            with parts.applying():
                return base.apply_gradients(pairs, *args, **kwargs)

        def apply(reduced: list[Any]) -> Any:
            return base.apply_gradients(zip(reduced, variables, strict=True), *args, **kwargs)

        scaled = isinstance(self, self._aiacc_scaling)
        done = parts.run([grad for grad, _ in pairs], variables, scaled, apply)
        return this.iterations if parts.passes.several else done
