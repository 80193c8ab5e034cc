"""Data-parallel training with TensorFlow: ``import aiacc.tensorflow as hvd``.

Names, argument order and defaults are those of ``horovod.tensorflow``. Operations work on eager
tensors, in `tf.function`, and in graphs of `tf.compat.v1`.
"""

from __future__ import annotations

from aiacc.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from aiacc.capabilities import (
    ccl_built,
    check_extension,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from aiacc.collectives.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from aiacc.exceptions import CollectiveError, HorovodInternalError
from aiacc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from aiacc.tensorflow.compression import Compression
from aiacc.tensorflow.functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from aiacc.tensorflow.gradient_tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from aiacc.tensorflow.op_library import load as _load
from aiacc.tensorflow.ops.allgather import allgather, grouped_allgather
from aiacc.tensorflow.ops.allreduce import allreduce, grouped_allreduce
from aiacc.tensorflow.ops.alltoall import alltoall
from aiacc.tensorflow.ops.barrier_join import barrier, join
from aiacc.tensorflow.ops.broadcast import broadcast, broadcast_
from aiacc.tensorflow.ops.reducescatter import grouped_reducescatter, reducescatter
from aiacc.tensorflow.optimizer import DistributedOptimizer

_load()

__all__ = [
    "Adasum",
    "Average",
    "CollectiveError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
