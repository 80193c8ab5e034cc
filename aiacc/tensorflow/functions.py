"""Variables and Python objects over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives import objects
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.ops.broadcast import broadcast_


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the values that variables have on ``root_rank`` to them, on all ranks.

    Collective: every rank, with variables of the same shapes and dtypes in the same order.
    Blocks: until all have their values, outside of graphs. In a graph it blocks nothing.

    Args:
        variables: Those of TensorFlow or Keras.
        root_rank: Global rank to copy from.
        process_set: Ranks that take part.
        inplace: Accepted because Horovod has it.

    Returns:
        The variables; in a graph for a session the node that assigns them.

    Raises:
        ValueError: Bad argument.
        tf.errors.OpError: The operation failed.
    """
    arguments.check(locals())
    del inplace
    assigned = broadcast_(variables, root_rank, process_set=process_set)
    return tf.group(*assigned) if node.in_session_graph() else assigned


def broadcast_global_variables(root_rank: int) -> Any:
    """A node that assigns the values that all variables of the graph have on ``root_rank``.

    For graphs and sessions of `tf.compat.v1`. Run it once they are initialised; so does
    `BroadcastGlobalVariablesHook`.

    Collective: every rank runs it, with graphs that have the same variables in the same order.
    Blocks: never; running the node blocks until all have their values.

    Args:
        root_rank: Global rank to copy from.

    Raises:
        RuntimeError: Outside of such a graph, where no list of all variables exists.
    """
    arguments.check(locals())
    if not node.in_session_graph():
        raise RuntimeError(
            "broadcast_global_variables with eager execution or in a tf.function (expected a graph "
            "of tf.compat.v1); use broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object to every rank.

    Collective: every rank, with the same name and root.
    Blocks: until the object is there.

    Args:
        obj: Anything that cloudpickle takes, or pickle if that is not installed; ignored except on
            the root.
        root_rank: Global rank to copy from.
        session: Accepted because Horovod has it: no graph is involved.
        name: Pairs this call with the calls of the other ranks.
        process_set: Ranks that take part.

    Returns:
        ``obj`` itself on the root, a copy of it elsewhere.

    Raises:
        ValueError: On every rank if the root cannot pickle ``obj``.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """`broadcast_object` as a function of the object alone."""
    arguments.check(locals())

    def send(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return send


def allgather_object(
    obj: Any,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Collect a Python object of every rank.

    Collective: every rank, with the same name.
    Blocks: until all objects are there.

    Args:
        obj: Anything that cloudpickle takes, or pickle if that is not installed.
        session: Accepted because Horovod has it: no graph is involved.
        name: Pairs this call with the calls of the other ranks.
        process_set: Ranks that take part.

    Returns:
        Copies of the objects in rank order.

    Raises:
        ValueError: On every rank if one cannot pickle its object.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    del session
    return objects.gather_objects(obj, name, process_set)
