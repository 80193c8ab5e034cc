"""All-to-all: every rank sends a part of its rows to every other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node


@node.plain
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank, and concatenate those that come, in rank order.

    Differentiable: gradients go back where the rows came from.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there, outside of graphs. In a graph it blocks nothing.

    Args:
        tensor: Tensor of at least one dimension, of numbers of any dtype.
        splits: Rows for each rank, whole numbers; None divides the rows evenly.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.
        process_set: Ranks that take part.

    Returns:
        New tensor; with ``splits`` a pair of it and the rows that came from each rank (int32).

    Raises:
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument.
        NotImplementedError: In a function that XLA compiles.
        tf.errors.OpError: The operation failed: InvalidArgumentError for splits that do not fit,
            FailedPreconditionError if the ranks disagree about it.
    """
    arguments.check(locals())
    del ignore_name_scope
    moved = node.moved(tensor, label_of("alltoall", name), rows=True)
    given = moved.tensor
    whole = tf.zeros([0], tf.int64) if splits is None else _numbers_of(splits)
    received, rows = node.run("aiacc_alltoall", "alltoall", name, process_set, [given, whole])
    node.rows_unknown([received], [given])
    output = moved.restore(received)
    return output if splits is None else (output, tf.cast(rows, tf.int32))


def _numbers_of(splits: Any) -> Any:
    try:
        numbers = tf.convert_to_tensor(splits)
        is_list = numbers.dtype.is_integer and numbers.shape.rank in (1, None)
    except (TypeError, ValueError):
        is_list = False
    if not is_list:
        raise TypeError(f"splits={splits!r:.100} (expected whole numbers, the rows for each rank)")
    return tf.cast(numbers, tf.int64)


@node.gradient_of("AiaccAlltoall")
def _gradient(op: Any, grad: Any, grad_of_rows: Any) -> list[Any]:
    del grad_of_rows
    name = node.name_given_to(op)
    back, _ = node.run(
        "aiacc_alltoall",
        "alltoall.grad",
        name,
        op.get_attr("process_set_id"),
        [tf.convert_to_tensor(grad), op.outputs[1]],
    )
    return [back, None, *[None] * op.get_attr("token_count")]
