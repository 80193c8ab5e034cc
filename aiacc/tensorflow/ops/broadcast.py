"""Broadcast of a tensor, and of variables in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.ops.allreduce import average_for_gradient
from aiacc.tensorflow.ops.topology import rank_op

_VARIABLES = arguments.RULES["tensors"]._replace(expected="a list of variables")


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
        tensor: Tensor of numbers of any shape and dtype.
        root_rank: Global rank to copy from.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.
        process_set: Ranks that take part.

    Returns:
        New tensor of the shape and dtype of ``tensor``.

    Raises:
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument.
        NotImplementedError: In a function that XLA compiles.
        tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree about
            it.
    """
    arguments.check(locals())
    del ignore_name_scope
    given = node.moved(tensor, label_of("broadcast", name))
    (copy,) = _copies([given], root_rank, name, process_set)
    return copy


@node.plain
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the values that variables have on ``root_rank`` to them, on all ranks.

    All travel at the same time. On the root they keep their memory.

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
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument; a variable of no numbers, such as of strings.
        tf.errors.OpError: The operation failed for a variable, and none is assigned.
    """
    arguments.check(locals(), variables=_VARIABLES)
    listed = list(variables)
    for variable in listed:
        if not hasattr(variable, "assign"):
            raise TypeError(
                f"variables contains {variable!r:.100} (expected variables of TensorFlow or "
                "Keras); use broadcast for tensors"
            )
    given = [
        node.moved(variable, f"broadcast_ of variable {getattr(variable, 'name', i)!r}")
        for i, variable in enumerate(listed)
    ]
    copies = _copies(given, root_rank, name, process_set)
    assigned = [variable.assign(copy) for variable, copy in zip(listed, copies, strict=True)]
    return assigned if node.in_session_graph() else listed


def _copies(
    given: list[node.Moved], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """The tensors of the root, which all travel at the same time."""
    if not given:
        return []
    tensors = [one.tensor for one in given]
    copies = node.run(
        "aiacc_broadcast", "broadcast", name, process_set, [tensors], root_rank=root_rank
    )
    for copy, tensor in zip(copies, tensors, strict=True):
        if not tf.executing_eagerly():
            copy.set_shape(tensor.shape)
    return [one.restore(copy) for one, copy in zip(given, copies, strict=True)]


@node.gradient_of("AiaccBroadcast")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    name, process_set = node.name_given_to(op), op.get_attr("process_set_id")
    averages = average_for_gradient("broadcast.grad", grads, name, process_set)
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    own = [tf.where(is_root, average, tf.zeros_like(average)) for average in averages]
    return [*own, *[None] * op.get_attr("token_count")]
