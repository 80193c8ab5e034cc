"""An optimizer of Keras that applies the gradients of all ranks, except those of some layers."""

from __future__ import annotations

from typing import Any

from aiacc.collectives.reduce_ops import Average
from aiacc.planning.plan import Plan
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow.compression import Compression, Compressor
from aiacc.tensorflow.gradients import variables_of
from aiacc.tensorflow.keras.optimizer import DistributedOptimizer


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    plan: Plan | None = None,
) -> Any:
    """`DistributedOptimizer` that leaves the variables of some layers to each rank.

    Other arguments are those of `DistributedOptimizer`.

    Collective: no.
    Blocks: never.

    Args:
        optimizer: See there.
        name: See there.
        device_dense: See there.
        device_sparse: See there.
        compression: See there.
        sparse_as_dense: See there.
        gradient_predivide_factor: See there.
        op: See there.
        groups: See there.
        process_set: See there.
        local_layers: A built Keras layer, or several, whose gradients are not reduced.
        scale_local_gradients: See there.
        backward_passes_per_step: See there.
        average_aggregated_gradients: See there.
        plan: See there.

    Raises:
        ValueError: A bad argument; a layer without its variables.
    """
    arguments = locals()
    local = variables_of(arguments.pop("local_layers"))
    distributed: Any = DistributedOptimizer(**arguments)
    for variable in local:
        distributed.register_local_var(variable)
    return distributed
