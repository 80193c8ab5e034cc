"""Operations that move no tensor."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc.collectives import barrier_join
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.tensorflow import node, op_library


@node.plain
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Wait for all ranks.

    In a graph it is a node, after what precedes it in the function and has side effects; make it
    depend on tensors by `tf.control_dependencies`.

    Collective: every rank.
    Blocks: until every rank has called it, outside of graphs. In a graph it blocks nothing.

    Returns:
        None; in a graph for a session the node.

    Raises:
        NotImplementedError: In a function that XLA compiles.
        CollectiveError: Not initialised, or a rank was lost; as tf.errors.OpError from a graph.
    """
    if tf.executing_eagerly():
        return barrier_join.barrier(process_set)
    graph = tf.compat.v1.get_default_graph()
    node.refuse_xla(graph, "barrier")
    with tf.device(node.DEVICE):
        barrier_node = op_library.checked().aiacc_barrier(process_set_id=set_id(process_set))
    return barrier_node if node.in_session_graph() else None


@node.plain
def join() -> Any:
    """Tell the other ranks that this one has no more data, and wait until all have none.

    Until then this rank takes part in the all-reduces of the others with zeros; Average still
    divides by the number of all ranks. Other operations of the others fail at once. In a graph it
    is a node: make it depend on what shall precede it by `tf.control_dependencies`.

    Collective: every rank, once each, when its data has ended.
    Blocks: until every rank has joined, outside of graphs. In a graph it blocks nothing.

    Returns:
        The rank that joined last: an int32 tensor of shape ().

    Raises:
        NotImplementedError: In a function that XLA compiles.
        CollectiveError: Not initialised, or a rank was lost; as tf.errors.OpError from a graph.
    """
    if tf.executing_eagerly():
        return tf.constant(barrier_join.join(), tf.int32)
    graph = tf.compat.v1.get_default_graph()
    node.refuse_xla(graph, "join")
    with tf.device(node.DEVICE):
        last = op_library.checked().aiacc_join()
    return tf.cast(last, tf.int32)
