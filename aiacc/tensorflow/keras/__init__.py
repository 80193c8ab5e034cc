"""Data-parallel training with Keras 3 on TensorFlow: ``import aiacc.tensorflow.keras as hvd``.

Names, argument order and defaults are those of ``horovod.tensorflow.keras``.
"""

from __future__ import annotations

import keras as _keras

if _keras.backend.backend() != "tensorflow":
    _REMEDY = {"torch": "; use aiacc.torch, as docs/tensorflow.md says under 'Keras on torch'"}
    raise ImportError(
        f"Keras runs on {_keras.backend.backend()} (expected tensorflow): set KERAS_BACKEND="
        f"tensorflow{_REMEDY.get(_keras.backend.backend(), '')}"
    )

from aiacc.tensorflow import (
    Adasum,
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from aiacc.tensorflow.keras import callbacks, elastic
from aiacc.tensorflow.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    load_model,
    reducescatter,
)
from aiacc.tensorflow.keras.optimizer import DistributedOptimizer
from aiacc.tensorflow.keras.partial_optimizer import PartialDistributedOptimizer
from aiacc.tensorflow.keras.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
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
