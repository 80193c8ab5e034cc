"""Distributed optimizers of Keras 3."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc.tensorflow import node
from aiacc.tensorflow.keras.choice import keras_3
from aiacc.tensorflow.keras.distributed import Distributed, Parts, convert

_keras = keras_3()


def distribute(optimizer: Any, name: str | None, parts: Parts) -> Any:
    """``optimizer`` itself, which is distributed from now on."""
    if name is not None:
        optimizer.name = name
    convert(optimizer, _Distributed, parts)
    return optimizer


def _copy(optimizer: Any, memo: dict[int, Any]) -> Any:
    """One like it for the same variables, with a copy of the state; Keras has no copies."""
    cls, rate = type(optimizer), optimizer._learning_rate
    given = not hasattr(rate, "assign")  # a schedule or a function, which may have none
    described = object.__new__(cls)
    described.__dict__.update(vars(optimizer))
    if given:
        described.__dict__["_learning_rate"] = tf.constant(0.0)
    config = described.get_config()
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        config["inner_optimizer"] = _copy(inner, memo)
    elif given:
        config["learning_rate"] = copy.deepcopy(rate, memo)
    copied = cls(**config) if inner is not None else cls.from_config(config)
    if optimizer.built:
        # A LossScaleOptimizer does not know them itself in every Keras: in 3.11 it does not.
        variables = (inner or optimizer)._trainable_variables
        memo.update((id(variable), variable) for variable in variables)
        copied.build(variables)
    memo[id(optimizer)] = copied
    plain = (int, float, str, type(None))  # which may be of no configuration
    for name, value in vars(optimizer).items():
        if name not in vars(copied) or callable(value) or isinstance(value, plain):
            copied.__dict__[name] = copy.deepcopy(value, memo)
    for new, old in zip(copied.variables, optimizer.variables, strict=True):
        new.assign(old)
    return copied


class _Distributed(Distributed):
    """What the subclass adds to the class of the optimizer that was wrapped."""

    _aiacc_scaling = _keras.optimizers.LossScaleOptimizer
    _aiacc_mark = "loss_scale_factor"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """One for the same variables, with a copy of the state."""
        return _copy(self, memo)

    def build(self, variables: Sequence[Any]) -> None:
        """Also notice a LossScaleOptimizer that has told nothing when it was made."""
        self._aiacc_share(self._aiacc_around())
        base: Any = super()
        base.build(variables)

    @node.plain
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce gradients over the ranks, and update the variables with them.

        Collective: every rank, with gradients of the same shapes and dtypes in the same order.
        Blocks: until it is done, outside of graphs. In a graph it blocks nothing.

        Args:
            grads: Tensors, `tf.IndexedSlices` or None; in a graph None is so on all ranks.
            trainable_variables: Of the gradients; None: those that the optimizer was built with.

        Raises:
            ValueError: Called by a LossScaleOptimizer that was not noticed.
            tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree.
        """
        base: Any = super()
        this: Any = self
        if self._aiacc.reduced_already:
            base.apply(grads, trainable_variables)
            return
        self._aiacc_refuse_around()
        grads = list(grads)
        variables = list(trainable_variables or this._trainable_variables)
        if grads and not this.built:
            with tf.init_scope():
                this.build(variables)
        scaled = isinstance(self, self._aiacc_scaling)
        self._aiacc.run(grads, variables, scaled, lambda reduced: base.apply(reduced, variables))
