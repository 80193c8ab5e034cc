"""Data-parallel training with Keras on TensorFlow: ``import aiacc.tensorflow.keras as hvd``.

Names, argument order and defaults are those of ``horovod.tensorflow.keras``. Keras is that of
`tf.keras`: Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1.
"""

from __future__ import annotations

from aiacc.collectives import names
from aiacc.collectives.names import *  # noqa: F403
from aiacc.tensorflow.compression import Compression
from aiacc.tensorflow.functions import (
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
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
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += names.__all__
