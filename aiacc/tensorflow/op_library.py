"""Loads the ops into TensorFlow, and looks whether they work there.

They are in libaiacc_tensorflow.so, which is built without TensorFlow, for all its versions. A
TensorFlow that does not run it gets a library that is compiled for it (`op_build`).
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

import aiacc
from aiacc import _core
from aiacc.tensorflow import op_build

#: Of the installed package, or of the tree.
LIBRARY = Path(aiacc.__file__).resolve().parent / "libaiacc_tensorflow.so"

#: What AiaccProbe gives (csrc/bindings/tensorflow/op_specs.h).
_PROBE_ANSWER = 0x41494143


#: Functions of the ops that were loaded, by name. Of an op that two libraries have, TensorFlow
#: gives the first one's alone; it runs the kernel of the one that was compiled.
_functions: dict[str, Any] = {}


def load() -> Any:
    """The ops as TensorFlow offers them to Python, one function for each.

    Leaves devices and threads of TensorFlow to be configured.

    Blocks: while the ops are compiled, where TensorFlow does not load the library; else never for
    long.

    Raises:
        ImportError: There is no library; or this TensorFlow does not load it, and the ops cannot be
            compiled for it, or AIACC_TENSORFLOW_OPS says that they shall not be.
    """
    return _chosen()[1]


@functools.cache
def checked() -> Any:
    """What `load` returns, once an asynchronous op has run in this TensorFlow.

    Called before the first collective. In a program that never runs ops eagerly nothing is run.

    Blocks: as `load`; and where TensorFlow loads the library and does not run it.

    Raises:
        ImportError: See `load`; or the op did not give what it should.
    """
    path, ops = _chosen()
    problem = _problem_of(ops)
    if problem and path == LIBRARY and _source() == "auto":
        path, ops = _compiled(_refusal(path, problem))
        problem = _problem_of(ops)
    if problem:
        raise ImportError(_refusal(path, problem))
    return ops


def _source() -> str:
    return str(_core.config()["tensorflow_ops"])


@functools.cache
def _chosen() -> tuple[Path, Any]:
    """The file that is loaded first, and its ops."""
    if _source() == "build":
        return _compiled("AIACC_TENSORFLOW_OPS=build")
    try:
        return LIBRARY, load_file(LIBRARY)
    except ImportError as error:
        if _source() == "library" or not LIBRARY.exists():
            raise
        return _compiled(str(error))


def _compiled(why: str) -> tuple[Path, Any]:
    try:
        path = op_build.built(why)
    except ImportError as error:
        raise ImportError(f"{why}; {error}") from error
    return path, load_file(path)


def _problem_of(ops: Any) -> str:
    """Runs an asynchronous op; what is wrong with it, "" for nothing."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return ""
        try:
            answer = int(tf.function(ops.aiacc_probe)())
        except (tf.errors.OpError, AttributeError) as error:
            return str(error)
    return "" if answer == _PROBE_ANSWER else f"its probe gave {answer}, not {_PROBE_ANSWER}"


def load_file(path: Path) -> Any:
    """The ops of a library, and of those that were loaded before.

    Raises:
        ImportError: There is no library, or this TensorFlow cannot load it.
    """
    if not path.exists():
        raise ImportError(
            f"{path} is missing (expected it beside aiacc/_core); build aiacc again: `make build` "
            "in its source folder, or `pip install --force-reinstall .`"
        )
    try:
        module = tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError) as error:
        raise ImportError(_refusal(path, str(error))) from error
    _functions.update(
        (name, value) for name, value in vars(module).items() if name.startswith("aiacc_")
    )
    return SimpleNamespace(**_functions)


def _refusal(path: Path, problem: str) -> str:
    remedy = "install one of these versions" if path == LIBRARY else "delete it, or install one"
    return (
        f"TensorFlow {tf.__version__} does not run {path}: {problem} (expected TensorFlow 2.16 to "
        f"2.21 for Linux); {remedy}"
    )
