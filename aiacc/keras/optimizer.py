"""The optimizer of `aiacc.keras`, whose arguments have another order than elsewhere."""

from __future__ import annotations

from typing import Any

from aiacc.planning.plan import Plan
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import Average, Compression
from aiacc.tensorflow.compression import Compressor
from aiacc.tensorflow.keras import optimizer as for_tensorflow


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    plan: Plan | None = None,
) -> Any:
    """`aiacc.tensorflow.keras.DistributedOptimizer`, with the arguments in another order.

    See there for all of them.

    Args:
        optimizer: See there.
        name: See there.
        device_dense: See there.
        device_sparse: See there.
        compression: See there.
        sparse_as_dense: See there.
        gradient_predivide_factor: See there.
        op: See there.
        num_groups: See there.
        groups: See there.
        backward_passes_per_step: See there.
        average_aggregated_gradients: See there.
        process_set: See there.
        scale_local_gradients: See there.
        plan: See there.

    Raises:
        ValueError: A bad argument.
    """
    arguments = locals()
    return for_tensorflow.DistributedOptimizer(**arguments)
