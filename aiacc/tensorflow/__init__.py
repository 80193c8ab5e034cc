"""Data-parallel training with TensorFlow: ``import aiacc.tensorflow as hvd``.

Names, argument order and defaults are those of ``horovod.tensorflow``. Operations work on eager
tensors, in `tf.function`, and in graphs of `tf.compat.v1`.
"""

from __future__ import annotations

from typing import Any

from aiacc.capabilities import check_extension
from aiacc.collectives.names import *  # noqa: F403 - typing does not see these in mpi_ops
from aiacc.exceptions import CollectiveError
from aiacc.tensorflow import elastic, mpi_ops
from aiacc.tensorflow.compression import Compression
from aiacc.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from aiacc.tensorflow.gradient_tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from aiacc.tensorflow.mpi_ops import *  # noqa: F403
from aiacc.tensorflow.op_library import load as _load
from aiacc.tensorflow.optimizer import DistributedOptimizer
from aiacc.tensorflow.session import BroadcastGlobalVariablesHook

_load()

__all__ = [
    "BroadcastGlobalVariablesHook",
    "CollectiveError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405 - see __getattr__
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "elastic",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    """`SyncBatchNormalization`, which imports Keras: not all who use TensorFlow need that."""
    if name == "SyncBatchNormalization":
        from aiacc.tensorflow.keras.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
