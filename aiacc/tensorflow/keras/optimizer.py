"""An optimizer of Keras 3 that applies the gradients of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from aiacc.collectives.reduce_ops import Average, Sum, name_of_op
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.tensorflow import node
from aiacc.tensorflow.compression import Compression, Compressor
from aiacc.tensorflow.gradients import GradientReduction, resolve_groups
from aiacc.tensorflow.keras.aggregation import LocalAggregation


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.Optimizer:
    """An optimizer like ``optimizer`` that reduces gradients over all ranks before it applies them.

    Its ``apply`` and ``apply_gradients`` are collective: every rank has to call them, with
    gradients of the same shapes and dtypes in the same order. In a compiled step, as that of
    ``fit``, each gradient travels as soon as it is there, while the others are computed.
    ``register_local_var`` excepts a variable. A saved model has an optimizer of the original class.

    It may be around a `keras.optimizers.LossScaleOptimizer` or in one, such as ``model.compile``
    puts around an optimizer if the policy is mixed_float16. Gradients are reduced while the loss
    scale is in them, so that the ranks agree whether they are finite.

    Collective: no.
    Blocks: never.

    Args:
        optimizer: Optimizer of Keras 3, left as it is; its state is copied.
        name: Of the new optimizer; None: that of ``optimizer``.
        device_dense: Accepted because Horovod has it: tensors travel from host memory.
        device_sparse: As ``device_dense``.
        compression: Form in which gradients travel.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors; otherwise the rows of all ranks
            are gathered.
        gradient_predivide_factor: Divides gradients before the sum by it, and the sum by the rest
            of the number of ranks; with op=Average.
        op: Average (default) or Sum.
        backward_passes_per_step: Calls of ``apply`` whose gradients are added up, on each rank,
            before they are reduced and applied.
        average_aggregated_gradients: Divide that sum by the number of calls.
        num_groups: Deprecated spelling of ``groups`` as a number.
        groups: Number of groups, or lists of variables, whose gradients are reduced together when
            the last of a group is there; variables in no list are reduced singly.
        process_set: Ranks that take part.
        scale_local_gradients: Divide the gradients of local variables by the number of ranks, so
            that one learning rate suits all.

    Returns:
        Instance of a subclass of the class of ``optimizer``, of the same name.

    Raises:
        ValueError: A bad argument.
    """
    del device_dense, device_sparse
    if not isinstance(optimizer, keras.Optimizer):
        raise ValueError(
            f"optimizer of {type(optimizer).__module__}.{type(optimizer).__name__} (expected an "
            "optimizer of Keras 3, keras.Optimizer); use keras.optimizers, or "
            "DistributedGradientTape"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            f"optimizer is a DistributedOptimizer ({type(optimizer).__name__}) already (expected "
            "one of Keras); wrap it once"
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"op={name_of_op(op)} with an optimizer of Keras (expected Average or Sum)"
        )
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} (expected a number >= 1)"
        )
    set_id(process_set)  # refuses one that is not registered
    reduction = GradientReduction(
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=resolve_groups(num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    passes = LocalAggregation(backward_passes_per_step, average_aggregated_gradients)
    return _distribute(optimizer, name, reduction, passes)


def _distribute(
    optimizer: Any, name: str | None, reduction: GradientReduction, passes: LocalAggregation
) -> Any:
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    distributed = _derived(type(optimizer)).from_config(config)
    distributed._aiacc = _Parts(reduction, passes)
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)
        for new, old in zip(distributed.variables, optimizer.variables, strict=True):
            new.assign(old)
    return distributed


def _derived(base: Any) -> Any:
    # A saved model names module and class: they are those that can load it.
    members = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (_Distributed, base), members)


class _Parts:
    """What a distributed optimizer has besides; an object, so that Keras does not track it."""

    def __init__(self, reduction: GradientReduction, passes: LocalAggregation) -> None:
        self.reduction = reduction
        self.passes = passes
        self.local: set[int] = set()
        #: Gradients are being applied that a LossScaleOptimizer around this one has reduced.
        self.reduced_already = False

    def reduced(self, grads: Sequence[Any], variables: Sequence[Any], scaled: bool) -> list[Any]:
        """Gradients of all ranks, those of local variables aside.

        With ``scaled`` these, too, are finite on all ranks or on none.
        """
        local = [id(variable) in self.local for variable in variables]
        if scaled and any(local):
            grads = self.reduction.alike_finite(grads, local)
        return self.reduction.but_local(grads, variables, local)


class _Distributed:
    """What the subclass adds to the class of the optimizer that was wrapped."""

    _aiacc: _Parts

    def __setattr__(self, name: str, value: Any) -> None:
        """Also notice a LossScaleOptimizer: it sets this when it is put around an optimizer."""
        super().__setattr__(name, value)
        if name == "loss_scale_factor":
            outer = _loss_scale_around(self)
            inner = getattr(outer, "inner_optimizer", None)
            if inner is self and not isinstance(outer, _Distributed):
                # It would see for itself whether this rank's gradients are finite. So it reduces.
                outer.__class__ = _derived(type(outer))
                outer._aiacc = self._aiacc

    def register_local_var(self, variable: Any) -> None:
        """Leave the gradient of a Keras variable to each rank."""
        self._aiacc.local.add(id(variable))

    @node.plain
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce gradients over the ranks, and update the variables with them.

        Collective: every rank, with gradients of the same shapes and dtypes in the same order.
        Blocks: until it is done, outside of graphs. In a graph it blocks nothing.

        Args:
            grads: Tensors, `tf.IndexedSlices` or None, which must be None on all ranks.
            trainable_variables: Of the gradients; None: those that the optimizer was built with.

        Raises:
            ValueError: Called by a LossScaleOptimizer that was not noticed when it was made.
            tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree.
        """
        base: Any = super()
        this: Any = self
        parts = self._aiacc
        if parts.reduced_already:
            base.apply(grads, trainable_variables)
            return
        _refuse_loss_scale(self)
        grads = list(grads)
        variables = list(trainable_variables or this._trainable_variables)
        if grads and not this.built:
            with tf.init_scope():
                this.build(variables)

        def update(grads: list[Any]) -> None:
            scaled = isinstance(self, keras.optimizers.LossScaleOptimizer)
            reduced = parts.reduced(grads, variables, scaled)
            parts.reduced_already = True
            try:
                base.apply(reduced, variables)
            finally:
                parts.reduced_already = False

        parts.passes.run(grads, update)


def _loss_scale_around(optimizer: object) -> Any:
    """The LossScaleOptimizer around ``optimizer`` that has called the caller, None if none has."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.LossScaleOptimizer) and caller is not optimizer:
            return caller
        frame = frame.f_back
    return None


def _refuse_loss_scale(optimizer: object) -> None:
    """Raise ValueError if a LossScaleOptimizer applies gradients with ``optimizer``.

    It does so only where gradients are finite, which each rank would see for itself: those that do
    would wait for those that do not.
    """
    if _loss_scale_around(optimizer) is not None:
        raise ValueError(
            "a DistributedOptimizer that was put into a LossScaleOptimizer later (expected one "
            "that LossScaleOptimizer(optimizer) was called with, so that the ranks agree whether "
            "gradients are finite); make a new LossScaleOptimizer around it"
        )
