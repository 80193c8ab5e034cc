"""Data-parallel training with TensorFlow: ``import aiacc.tensorflow as hvd``.

Names, argument order and defaults are those of ``horovod.tensorflow``. Operations work on eager
tensors, in `tf.function`, and in graphs of `tf.compat.v1`.
"""

from __future__ import annotations

from aiacc.capabilities import check_extension
from aiacc.collectives import names
from aiacc.collectives.names import *  # noqa: F403
from aiacc.exceptions import CollectiveError
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
    "CollectiveError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
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
    "check_extension",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]
__all__ += names.__all__
