"""Names the calls of functions, so that their nodes meet those of the same call elsewhere."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

import tensorflow as tf

from aiacc.tensorflow import node_names

_OWNER = "tensorflow.python.eager.polymorphic_function.atomic_function"


@functools.cache
def name_them() -> None:
    """From now on a call of a function with collectives is in the name scope that it needs.

    TensorFlow numbers calls, also those of functions without collectives. All calls in graphs,
    those of gradients too, pass through one function of its own, which is not public. Where it is
    missing, TensorFlow's numbers are part of the names.
    """
    try:
        owner: Any = importlib.import_module(_OWNER)
        add = owner.make_call_op_in_graph
    except (ImportError, AttributeError):
        return

    @functools.wraps(add)
    def add_named(function: Any, *args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        scope = node_names.of_call(graph, function.graph)
        with graph.name_scope(scope) if scope else contextlib.nullcontext():
            return add(function, *args, **kwargs)

    owner.make_call_op_in_graph = add_named
