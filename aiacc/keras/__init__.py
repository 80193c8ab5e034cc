"""Data-parallel training with Keras on TensorFlow: ``import aiacc.keras as hvd``.

The same as `aiacc.tensorflow.keras`, under the name that ``horovod.keras`` has, and with the order
of the arguments of its ``DistributedOptimizer``.
"""

from __future__ import annotations

from aiacc.tensorflow import keras
from aiacc.tensorflow.keras import *  # noqa: F403

from aiacc.keras.optimizer import (  # type: ignore[assignment]  # isort: skip - not that above
    DistributedOptimizer,
)

__all__ = ["DistributedOptimizer"]
__all__ += keras.__all__
