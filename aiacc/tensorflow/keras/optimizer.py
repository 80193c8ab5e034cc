"""An optimizer of Keras that applies the gradients of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from aiacc import arguments
from aiacc.collectives.reduce_ops import Average, Sum, name_of_op
from aiacc.planning.plan import Plan
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.tensorflow.compression import Compression, Compressor
from aiacc.tensorflow.gradients import GradientReduction, resolve_groups
from aiacc.tensorflow.keras.aggregation import LocalAggregation
from aiacc.tensorflow.keras.distributed import Distributed, Parts
from aiacc.tensorflow.planned import PlannedBuckets


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
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
    *,
    plan: Plan | None = None,
) -> Any:
    """Let an optimizer reduce gradients over all ranks before it applies them.

    It is ``optimizer`` itself that does so from now on, with all that it has: its state, its
    schedule, what was excluded from weight decay. Its ``apply`` and ``apply_gradients`` are
    collective: every rank has to call them, with gradients of the same shapes and dtypes in the
    same order. In a compiled step, as that of ``fit``, each gradient travels as soon as it is
    there, while the others are computed.
    ``register_local_var`` excepts a variable. Optimizers that its class makes, as ``from_config``
    does, and its copies by `copy` reduce gradients, too. What is saved, serialised or pickled is of
    the original class, also in a copy of a model by `copy.deepcopy`, which Keras saves and loads.

    It may be around a LossScaleOptimizer of Keras or in one, such as ``model.compile``
    puts around an optimizer if the policy is mixed_float16. Gradients are reduced while the loss
    scale is in them, so that the ranks agree whether they are finite.

    Collective: no.
    Blocks: never.

    Args:
        optimizer: Optimizer of Keras 3, or of tf_keras (also of ``tf_keras.optimizers.legacy``),
            which becomes a distributed one.
        name: Of the optimizer from now on; None: the one that it has.
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
        plan: Which gradients travel together, in place of ``groups`` (`aiacc.planning`,
            `aiacc-plan`), by the ``path`` of variables of Keras 3, the ``name`` of those of
            tf_keras; equal on all ranks, which compare it in their first step. In a compiled step
            a bucket leaves when its last gradient is there. Other gradients, and those of a bucket
            one of which is None, of a local variable or `tf.IndexedSlices`, travel by themselves.

    Returns:
        ``optimizer``, now of a subclass of its class, of the same name.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument. In the first step, on every rank: the ranks have
            different plans, or one has not the plan's variables.
    """
    arguments.check(locals())
    del device_dense, device_sparse
    distribute = _maker_for(optimizer)
    if isinstance(optimizer, Distributed):
        raise ValueError(
            f"optimizer is a DistributedOptimizer ({type(optimizer).__name__}) already (expected "
            "one of Keras); wrap it once"
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"op={name_of_op(op)} with an optimizer of Keras (expected Average or Sum)"
        )
    set_id(process_set)  # refuses one that is not registered
    reduction = GradientReduction(
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=resolve_groups(num_groups, groups),
        process_set=process_set,
        plan=None if plan is None else PlannedBuckets(plan),
        scale_local_gradients=scale_local_gradients,
    )
    passes = LocalAggregation(backward_passes_per_step, average_aggregated_gradients)
    return distribute(optimizer, name, Parts(reduction, passes))


def _maker_for(optimizer: Any) -> Callable[[Any, str | None, Parts], Any]:
    """What makes a distributed optimizer of ``optimizer``, by the Keras that it is of.

    If it is of one, that has been imported.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(optimizer, keras.Optimizer):
        from aiacc.tensorflow.keras import keras_3_optimizer

        return keras_3_optimizer.distribute
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is not None and isinstance(
        optimizer, (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
    ):
        from aiacc.tensorflow.keras import tf_keras_optimizer

        return tf_keras_optimizer.distribute
    raise ValueError(
        f"optimizer of {type(optimizer).__module__}.{type(optimizer).__name__} (expected an "
        "optimizer of Keras 3, keras.Optimizer, or of tf_keras); use keras.optimizers, or "
        "DistributedGradientTape"
    )
