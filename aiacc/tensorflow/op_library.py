"""Loads libaiacc_tensorflow.so, the ops, into TensorFlow, and looks whether they work there."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf

import aiacc

#: Of the installed package, or of the tree.
LIBRARY = Path(aiacc.__file__).resolve().parent / "libaiacc_tensorflow.so"

#: What AiaccProbe gives (csrc/bindings/tensorflow/op_specs.h).
_PROBE_ANSWER = 0x41494143


@functools.cache
def load(path: Path = LIBRARY) -> Any:
    """The ops as TensorFlow offers them to Python, one function for each.

    The library is built without TensorFlow, for all its versions. It leaves devices and threads of
    TensorFlow to be configured.

    Raises:
        ImportError: There is no library, or this TensorFlow cannot load it.
    """
    if not path.exists():
        raise ImportError(
            f"{path} is missing (expected it beside aiacc/_core); build aiacc again: `make build` "
            "in its source folder, or `pip install --force-reinstall .`"
        )
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError) as error:
        raise ImportError(_refusal(path, str(error))) from error


@functools.cache
def checked(path: Path = LIBRARY) -> Any:
    """What `load` returns, once an asynchronous op of the library has run in this TensorFlow.

    Called before the first collective. In a program that never runs ops eagerly nothing is run.

    Blocks: never for long.

    Raises:
        ImportError: See `load`; or the op did not give what it should.
    """
    ops = load(path)
    with tf.init_scope():
        if not tf.executing_eagerly():
            return ops
        try:
            answer = int(tf.function(ops.aiacc_probe)())
        except (tf.errors.OpError, AttributeError) as error:
            raise ImportError(_refusal(path, str(error))) from error
    if answer != _PROBE_ANSWER:
        raise ImportError(_refusal(path, f"its probe gave {answer}, not {_PROBE_ANSWER}"))
    return ops


def _refusal(path: Path, problem: str) -> str:
    return (
        f"TensorFlow {tf.__version__} does not run {path}: {problem} (expected TensorFlow 2.16 to "
        "2.21 for Linux); install one of these versions"
    )
