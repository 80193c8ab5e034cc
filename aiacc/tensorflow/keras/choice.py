"""The Keras that this package is for: that of `tf.keras`.

It is Keras 3, or tf_keras (Keras 2) with TF_USE_LEGACY_KERAS=1. Callbacks, layers and `load_model`
are of this one. `DistributedOptimizer` takes optimizers of either.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as tf

__all__ = ["keras", "keras_3"]


def keras_3() -> Any:
    """Keras 3.

    Raises:
        ImportError: It does not run on TensorFlow.
    """
    found = import_module("keras")
    backend = found.backend.backend()
    if backend != "tensorflow":
        remedy = {"torch": "; use aiacc.torch, as docs/tensorflow.md says under 'Keras on torch'"}
        raise ImportError(
            f"Keras runs on {backend} (expected tensorflow): set KERAS_BACKEND=tensorflow"
            f"{remedy.get(backend, '')}"
        )
    return found


if TYPE_CHECKING:
    import keras as keras
elif tf.keras.Model.__module__.startswith("tf_keras."):
    keras = import_module("tf_keras")
else:
    keras = keras_3()
