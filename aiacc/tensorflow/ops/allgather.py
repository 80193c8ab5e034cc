"""All-gather of a tensor, or of several as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.ops.topology import number_in_set


@node.plain
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, in rank order.

    Differentiable: the gradient is averaged over the ranks, each takes the rows that it gave.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there, outside of graphs. In a graph it blocks nothing.

    Args:
        tensor: Tensor of at least one dimension, of numbers of any dtype.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.
        process_set: Ranks that take part.

    Returns:
        New tensor whose first dimension is the sum of those of all ranks.

    Raises:
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument.
        NotImplementedError: In a function that XLA compiles.
        tf.errors.OpError: The operation failed: InvalidArgumentError for a tensor without
            dimensions, FailedPreconditionError if the ranks disagree about it.
    """
    arguments.check(locals())
    del ignore_name_scope
    (gathered,) = _gather("allgather", [tensor], name, process_set)
    return gathered


@node.plain
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors, as one operation that starts when all are ready.

    Arguments and errors are those of `allgather`.

    Collective: every rank, with the same name, dtypes and shapes except the first dimensions.
    Blocks: until the results are there, outside of graphs. In a graph it blocks nothing.
    """
    arguments.check(locals())
    del ignore_name_scope
    return _gather("grouped_allgather", tensors, name, process_set)


def _gather(
    verb: str, tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[Any]:
    moved = [node.moved(tensor, label_of(verb, name), rows=True) for tensor in tensors]
    given = [one.tensor for one in moved]
    if not given:
        return []
    gathered, _ = node.run("aiacc_allgather", verb, name, process_set, [given])
    node.rows_unknown(gathered, given)
    return [one.restore(rows) for one, rows in zip(moved, gathered, strict=True)]


@node.gradient_of("AiaccAllgather")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    from aiacc.tensorflow.ops.allreduce import average_for_gradient  # it imports this module

    name, process_set = node.name_given_to(op), op.get_attr("process_set_id")
    verb = "allgather.grad"
    *of_gathered, _ = grads
    averages = average_for_gradient(verb, of_gathered, name, process_set)
    number = number_in_set(process_set)
    rows = op.outputs[-1]
    parts = []
    for i, average in enumerate(averages):
        begin = tf.reduce_sum(rows[i, :number])
        parts.append(average[begin : begin + rows[i, number]])
    return [*parts, *[None] * op.get_attr("token_count")]
