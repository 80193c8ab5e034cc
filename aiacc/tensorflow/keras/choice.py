"""The Keras that this package is for: that of `tf.keras`.

It is Keras 3, or tf_keras (Keras 2) with TF_USE_LEGACY_KERAS=1. Callbacks, layers and `load_model`
are of this one. `DistributedOptimizer` takes optimizers of either.
"""

from __future__ import annotations

import functools
import warnings
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


def _accept_argument_of_keras_2(model_class: Any) -> None:
    """Let ``compile`` of Keras 3 take what Horovod's examples give to that of Keras 2."""
    # Keras compares a model's `compile` with that of the class that defines it.
    owner = next(one for one in model_class.__mro__ if "compile" in vars(one))
    original = owner.compile

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("experimental_run_tf_function", None) is not None:
            warnings.warn(
                "experimental_run_tf_function has no effect with Keras 3 (only Keras 2 had it, and "
                "Horovod's optimizer needed it there); leave it out",
                stacklevel=2,
            )
        return original(self, *args, **kwargs)

    owner.compile = compile


if TYPE_CHECKING:
    import keras as keras
elif tf.keras.Model.__module__.startswith("tf_keras."):
    keras = import_module("tf_keras")
else:
    keras = keras_3()
    _accept_argument_of_keras_2(keras.Model)
