"""The optimizer of `aiacc.tensorflow`, for whichever kind of optimizer is given."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.reduce_ops import Average
from aiacc.planning.plan import Plan
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow.compression import Compression, Compressor
from aiacc.tensorflow.gradients import GradientReduction, resolve_groups
from aiacc.tensorflow.session import SessionOptimizer
from aiacc.tensorflow.session_aggregation import SessionAggregation


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    plan: Plan | None = None,
) -> Any:
    """An optimizer of Keras or `tf.compat.v1.train` that applies the gradients of all ranks.

    For one of Keras (Keras 3 or tf_keras) it is `aiacc.tensorflow.keras.DistributedOptimizer`, with
    the arguments in another order; see there for all but these.

    For one of `tf.compat.v1.train` (graphs and sessions) it has its methods; ``compute_gradients``
    gives gradients that are reduced over the ranks, and ``minimize`` applies them.

    Args:
        optimizer: The optimizer.
        name: See there.
        use_locking: Of the new optimizer of `tf.compat.v1.train`.
        device_dense: See there.
        device_sparse: See there.
        compression: See there.
        sparse_as_dense: See there.
        backward_passes_per_step: See there; for `tf.compat.v1.train` the sums are local variables
            of the graph (`tf.compat.v1.local_variables_initializer`).
        op: See there; for `tf.compat.v1.train` Adasum, too.
        gradient_predivide_factor: See there.
        average_aggregated_gradients: See there.
        num_groups: See there.
        groups: See there.
        process_set: See there.
        scale_local_gradients: See there.
        plan: See there; None for `tf.compat.v1.train`.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument.
    """
    given = locals()
    arguments.check(given)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if isinstance(optimizer, SessionOptimizer):
            raise ValueError(
                f"optimizer is a DistributedOptimizer ({optimizer.get_name()}) already (expected "
                "one of tf.compat.v1.train); wrap it once"
            )
        if plan is not None:
            raise ValueError(
                f"plan={plan!r:.50} with an optimizer of tf.compat.v1.train (expected None); pass "
                "groups, lists of variables"
            )
        reduction = GradientReduction(
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            groups=resolve_groups(num_groups, groups),
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
        aggregation = SessionAggregation(backward_passes_per_step, average_aggregated_gradients)
        return SessionOptimizer(optimizer, name, use_locking, reduction, aggregation)
    from aiacc.tensorflow.keras import optimizer as for_keras  # imports Keras

    del given["use_locking"]
    return for_keras.DistributedOptimizer(**given)
