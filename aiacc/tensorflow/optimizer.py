"""The optimizer of `aiacc.tensorflow`, for whichever kind of optimizer is given."""

from __future__ import annotations

from typing import Any

from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow.compression import Compression, Compressor


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
) -> Any:
    """An optimizer of Keras 3 that applies the gradients of all ranks.

    It is `aiacc.tensorflow.keras.DistributedOptimizer`, with the arguments in another order; see
    there for all but these.

    Args:
        optimizer: See there.
        name: See there.
        use_locking: Accepted because Horovod has it.
        device_dense: See there.
        device_sparse: See there.
        compression: See there.
        sparse_as_dense: See there.
        backward_passes_per_step: See there.
        op: See there.
        gradient_predivide_factor: See there.
        average_aggregated_gradients: See there.
        num_groups: See there.
        groups: See there.
        process_set: See there.
        scale_local_gradients: See there.

    Raises:
        ValueError: A bad argument.
    """
    del use_locking
    from aiacc.tensorflow.keras import optimizer as for_keras  # imports Keras

    return for_keras.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
