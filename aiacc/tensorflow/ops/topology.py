"""Where this rank is in the job, asked when a graph runs.

`aiacc.rank()` in a `tf.function` is a constant of its trace. These follow a job that ends and
starts anew with other ranks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.process_sets import ProcessSet, set_id
from aiacc.tensorflow import node, op_library


def rank_op(name: str | None = None) -> Any:
    """Number of this process in the job.

    Collective: no.
    Blocks: never.

    Args:
        name: Of the node in a graph.

    Returns:
        An int32 tensor of shape ().

    Raises:
        NotImplementedError: In a function that XLA compiles.
        tf.errors.AbortedError: When it runs before `init` or after `shutdown`.
    """
    return _ask("rank", 0, name)


def local_rank_op(name: str | None = None) -> Any:
    """Number of this process on its host. Otherwise as `rank_op`."""
    return _ask("local_rank", 0, name)


def local_size_op(name: str | None = None) -> Any:
    """Number of processes on this host. Otherwise as `rank_op`."""
    return _ask("local_size", 0, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Number of processes in the job, or in a process set.

    Collective: no.
    Blocks: never.

    Args:
        process_set_id: ``ProcessSet.process_set_id`` of the set; 0 is all ranks.
        name: Of the node in a graph.

    Returns:
        An int32 tensor of shape ().

    Raises:
        NotImplementedError: In a function that XLA compiles.
        tf.errors.AbortedError: When it runs before `init` or after `shutdown`.
        tf.errors.InvalidArgumentError: No set of that number is registered when it runs.
    """
    return _ask("size", process_set_id, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in a process set, else 0. Otherwise as `size_op`."""
    return _ask("process_set_included", process_set_id, name)


def size_of(process_set: ProcessSet) -> Any:
    """Number of ranks of a set: in a graph that of the job that runs it, else a plain number."""
    return process_set.size() if tf.executing_eagerly() else size_op(set_id(process_set))


def number_in_set(process_set_id: int) -> Any:
    """Position of this rank among those of a process set, which it is in."""
    return _ask("process_set_rank", process_set_id, None)


@node.plain
def _ask(quantity: str, process_set: int, name: str | None) -> Any:
    arguments.check({"process_set_id": process_set, "name": name})
    function = op_library.checked().aiacc_topology
    if tf.executing_eagerly():
        with tf.device(node.DEVICE):
            return function(quantity=quantity, process_set_id=process_set)
    node.refuse_xla(tf.compat.v1.get_default_graph(), f"{quantity}_op")
    with tf.device(node.DEVICE):
        value = function(quantity=quantity, process_set_id=process_set, name=name)
    value.set_shape([])
    return value
