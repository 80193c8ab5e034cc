"""Data-parallel training with Keras 3 on TensorFlow: ``import aiacc.keras as hvd``.

The same as `aiacc.tensorflow.keras`, under the name that ``horovod.keras`` has.
"""

from __future__ import annotations

from aiacc.tensorflow import keras
from aiacc.tensorflow.keras import *  # noqa: F403

__all__ = keras.__all__
