"""Reduce-scatter: every rank gets a part of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import SCATTER_OP, Average, Sum, check_scatter_op
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.compression import Compression, Compressor, compressor_of
from aiacc.tensorflow.ops.topology import size_op


@node.plain
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks, each of which gets a part of the rows.

    Of ``d`` rows, the first ``d % size`` ranks get one more than the others.

    Differentiable: the gradients of the parts are gathered, and multiplied by the factors and, for
    op=Sum, by the number of ranks, as in Horovod.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there, outside of graphs. In a graph it blocks nothing.

    Args:
        tensor: Tensor of at least one dimension, of a dtype in `dtypes.DTYPE_CODES`.
        device_dense: Accepted because Horovod has it: tensors travel from host memory.
        compression: Form in which the tensor travels.
        op: Average (default) or Sum.
            Sums of integers, which Average divides, wrap around in their dtype.
        name: Pairs this call with those of the other ranks; see `allreduce`.
        process_set: Ranks that take part.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.

    Returns:
        New tensor of the dtype of ``tensor``.

    Raises:
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument.
        CollectiveError: Another op. (Horovod raises the same class.)
        NotImplementedError: In a function that XLA compiles.
        tf.errors.OpError: The operation failed: InvalidArgumentError for a tensor without
            dimensions, FailedPreconditionError if the ranks disagree about it.
    """
    arguments.check(locals(), op=SCATTER_OP)
    del device_dense, ignore_name_scope
    factors = prescale_factor, postscale_factor
    (part,) = _scatter("reducescatter", [tensor], compression, op, name, process_set, *factors)
    return part


@node.plain
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several tensors, as one operation that starts when all are ready.

    Arguments and errors are those of `reducescatter`.

    Collective: every rank, with the same shapes, dtypes, op and factors.
    Blocks: until the results are there, outside of graphs. In a graph it blocks nothing.
    """
    arguments.check(locals(), op=SCATTER_OP)
    del device_dense
    factors = prescale_factor, postscale_factor
    verb = "grouped_reducescatter"
    return _scatter(verb, tensors, compression, op, None, process_set, *factors)


def _scatter(
    verb: str,
    tensors: Sequence[Any],
    compression: type[Compressor],
    op: int,
    name: str | None,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> list[Any]:
    check_scatter_op(op)
    given = [node.tensor_of(tensor, label_of(verb, name)) for tensor in tensors]
    if not given:
        return []
    compression = compressor_of(compression)
    compressed, contexts = zip(*(compression.compress(tensor) for tensor in given), strict=True)
    parts = node.run(
        "aiacc_reducescatter",
        verb,
        name,
        process_set,
        [list(compressed)],
        reduce_op=op,
        prescale_bits=node.bits_of(prescale_factor),
        postscale_bits=node.bits_of(postscale_factor),
    )
    node.rows_unknown(parts, given)
    return [compression.decompress(part, ctx) for part, ctx in zip(parts, contexts, strict=True)]


@node.gradient_of("AiaccReducescatter")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    name, process_set = node.name_given_to(op), op.get_attr("process_set_id")
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    gathered, _ = node.run("aiacc_allgather", "reducescatter.grad", name, process_set, [dense])
    factor = tf.constant(1.0, tf.float64)
    if op.get_attr("reduce_op") == Sum:
        factor = tf.cast(size_op(process_set), tf.float64)
    for attribute in ("prescale_bits", "postscale_bits"):
        factor *= node.factor_from(op.get_attr(attribute))
    whole = [gradient * tf.cast(factor, gradient.dtype) for gradient in gathered]
    return [*whole, *[None] * op.get_attr("token_count")]
