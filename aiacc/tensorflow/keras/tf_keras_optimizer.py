"""Distributed optimizers of tf_keras (Keras 2), those of its ``legacy`` optimizers, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from aiacc.tensorflow import node
from aiacc.tensorflow.keras.distributed import Distributed, Parts, derived


def distribute(optimizer: Any, name: str | None, parts: Parts) -> Any:
    """A distributed optimizer like ``optimizer``, whose state it copies in its first step."""
    config = optimizer.get_config()
    if name is not None:
        named = config["inner_optimizer"]["config"] if "inner_optimizer" in config else config
        named["name"] = name
    distributed = derived(_Distributed, type(optimizer), parts).from_config(config)
    distributed.__dict__["_aiacc"] = parts
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer) and optimizer.dynamic:
        new, old = distributed._loss_scale, optimizer._loss_scale
        new.current_loss_scale.assign(old.current_loss_scale)
        new.counter.assign(old.counter)
    parts.origin = optimizer
    return distributed


def take_state(distributed: Any, variables: Sequence[Any]) -> None:
    """Make an optimizer's variables for those of a model, and copy what the wrapped one had.

    Raises:
        ValueError: That was for other variables.
    """
    legacy = isinstance(distributed, tf_keras.optimizers.legacy.Optimizer)
    parts = distributed._aiacc
    with tf.init_scope():
        (distributed._create_all_weights if legacy else distributed.build)(variables)
        origin, parts.origin = parts.origin, None
        old, new = ([] if o is None else list(o.variables()) for o in (origin, distributed))
        if len(old) > 1 and [v.shape for v in old] != [v.shape for v in new]:
            raise ValueError(
                f"the optimizer that was wrapped has {len(old)} variables of shapes "
                f"{[tuple(v.shape) for v in old]!s:.200} (expected the {len(new)} of shapes "
                f"{[tuple(v.shape) for v in new]!s:.200} that these gradients need); wrap a new one"
            )
        for to, value in zip(new, old, strict=False):  # the first is the number of steps
            to.assign(value)


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
            grads_and_vars: Gradients, which may be `tf.IndexedSlices` or None (then on all ranks),
                with their variables.
            *args: Those of tf_keras.
            **kwargs: Those of tf_keras. With ``skip_gradients_aggregation=True``, or
                ``experimental_aggregate_gradients=False``, gradients are not reduced.

        Raises:
            ValueError: Called by a LossScaleOptimizer that was not noticed; the state of the
                optimizer that was wrapped is for other variables.
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
        if pairs and (parts.origin is not None or parts.passes.several):
            take_state(self, variables)
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
