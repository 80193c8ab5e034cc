"""Broadcast of a tensor, and of variables in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.ops.allreduce import average_for_gradient
from aiacc.tensorflow.ops.topology import rank_op


@node.plain
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the tensor of ``root_rank`` to all ranks.

    Differentiable: the root's gradient is the average over the ranks, that of others zero.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: until the result is there, outside of graphs. In a graph it blocks nothing.

    Args:
        tensor: Tensor of any shape, of a dtype in `dtypes.DTYPE_CODES`.
        root_rank: Global rank to copy from.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.
        process_set: Ranks that take part.

    Returns:
        New tensor of the shape and dtype of ``tensor``.

    Raises:
        ValueError: Bad argument.
        NotImplementedError: In a function that XLA compiles.
        tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree about
            it.
    """
    del ignore_name_scope
    given = node.tensor_of(tensor, label_of("broadcast", name))
    copy = node.run("aiacc_broadcast", "broadcast", name, process_set, [given], root_rank=root_rank)
    if not tf.executing_eagerly():
        copy.set_shape(given.shape)
    return copy


@node.plain
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the values that variables have on ``root_rank`` to them, on all ranks.

    Collective: every rank, with variables of the same shapes and dtypes in the same order.
    Blocks: until all have their values, outside of graphs. In a graph it blocks nothing.

    Args:
        variables: Those of TensorFlow or Keras.
        root_rank: Global rank to copy from.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        process_set: Ranks that take part.

    Returns:
        The variables; in a graph for a session their values once they are assigned.

    Raises:
        ValueError: Bad argument.
        tf.errors.OpError: The operation failed.
    """
    listed = list(variables)
    assigned = []
    for number, variable in enumerate(listed):
        part = name and f"{name}.{number}"
        copy = broadcast(variable, root_rank, part, process_set=process_set)
        assigned.append(variable.assign(copy))
    return assigned if node.in_session_graph() else listed


@node.gradient_of("AiaccBroadcast")
def _gradient(op: Any, grad: Any) -> list[Any]:
    name, process_set = node.name_given_to(op), op.get_attr("process_set_id")
    (average,) = average_for_gradient("broadcast.grad", [grad], name, process_set)
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    own = tf.where(is_root, average, tf.zeros_like(average))
    return [own, *[None] * op.get_attr("token_count")]
