"""All-reduce of a tensor, or of several as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, Sum, check_gradient_op, name_of_op, resolve_op
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.compression import Compression, Compressor, compressor_of, restored, to_send
from aiacc.tensorflow.ops.allgather import grouped_allgather
from aiacc.tensorflow.ops.topology import size_of

_OP = arguments.or_none(arguments.RULES["op"])


@node.plain
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks.

    Differentiable with op=Average or Sum: the gradient is reduced in the same way. That of another
    op is a NotImplementedError.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there, outside of graphs. In a graph it blocks nothing.

    Args:
        tensor: Tensor of any shape, of a dtype in `dtypes.DTYPE_CODES`, or what becomes one; or
            `tf.IndexedSlices`, whose rows are gathered from all ranks (Average and Sum only).
        average: Deprecated; True means op=Average, False op=Sum.
        device_dense: Accepted because Horovod has it: tensors travel from host memory.
        device_sparse: As ``device_dense``.
        compression: Form in which the tensor travels.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
            Sums of integers, which Average divides, wrap around in their dtype; averages of
            integer `tf.IndexedSlices` are floating-point.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        name: Pairs this call with those of the other ranks; needed if several threads make such
            calls outside of graphs. Without it, nodes are called after their function and place in
            it.
        process_set: Ranks that take part.
        ignore_name_scope: Accepted because Horovod has it: name scopes never matter.

    Returns:
        New tensor of the shape and dtype of ``tensor``, or `tf.IndexedSlices`.

    Raises:
        TypeError: Argument of a wrong type.
        ValueError: Other wrong argument.
        NotImplementedError: In a function that XLA compiles; `tf.IndexedSlices` with another op or
            with factors.
        tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree about
            it, which leaves the job alive.
    """
    arguments.check(locals(), op=_OP)
    del device_dense, device_sparse, ignore_name_scope
    op = resolve_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        if (prescale_factor, postscale_factor) != (1.0, 1.0):
            raise NotImplementedError(
                f"[tensorflow] {label_of('allreduce', name)} of IndexedSlices with prescale_factor="
                f"{prescale_factor} and postscale_factor={postscale_factor} (expected 1.0); use "
                "tf.convert_to_tensor first, or sparse_as_dense=True"
            )
        return _allreduce_slices(tensor, op, name, process_set)
    factors = prescale_factor, postscale_factor
    (reduced,) = _reduce("allreduce", [tensor], compression, op, *factors, name, process_set)
    return reduced


@node.plain
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors over all ranks, as one operation that starts when all are ready.

    Arguments and errors are those of `allreduce`; `tf.IndexedSlices` are operations of their own.

    Collective: every rank, with the same name, shapes, dtypes, op and factors.
    Blocks: until the results are there, outside of graphs. In a graph it blocks nothing.

    Returns:
        New tensors of the shapes and dtypes of ``tensors``; none for none.
    """
    arguments.check(locals(), op=_OP)
    del device_dense, device_sparse, ignore_name_scope
    op = resolve_op(average, op)
    results = list(tensors)
    slices = [i for i, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in slices]
    if dense:
        factors = prescale_factor, postscale_factor
        group = [results[i] for i in dense]
        verb = "grouped_allreduce"
        reduced = _reduce(verb, group, compression, op, *factors, name, process_set)
        for i, result in zip(dense, reduced, strict=True):
            results[i] = result
    for i in slices:
        part = name and f"{name}.{i}"
        results[i] = allreduce(
            results[i],
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=part,
            process_set=process_set,
        )
    return results


def _reduce(
    verb: str,
    tensors: Sequence[Any],
    compression: type[Compressor],
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet,
) -> list[Any]:
    given = [node.tensor_of(tensor, label_of(verb, name)) for tensor in tensors]
    compression = compressor_of(compression)
    sent, contexts, wire = to_send(compression, given, op)
    reduced = _run(
        verb,
        sent,
        name,
        process_set,
        op,
        node.bits_of(prescale_factor),
        node.bits_of(postscale_factor),
        wire,
    )
    return restored(compression, reduced, contexts, wire)


def _run(
    verb: str,
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet | int,
    op: int,
    prescale_bits: int,
    postscale_bits: int,
    wire: int,
) -> list[Any]:
    reduced = node.run(
        "aiacc_allreduce",
        verb,
        name,
        process_set,
        [tensors],
        reduce_op=op,
        prescale_bits=prescale_bits,
        postscale_bits=postscale_bits,
        wire_format=wire,
    )
    for output, tensor in zip(reduced, tensors, strict=True):
        if not tf.executing_eagerly():
            output.set_shape(tensor.shape)
    return list(reduced)


def average_for_gradient(
    verb: str, grads: Sequence[Any], name: str | None, process_set: int
) -> list[Any]:
    """The mean of gradients over the ranks of a process set, which is given by its number."""
    one = node.bits_of(1.0)
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    return _run(verb, dense, name, process_set, Average, one, one, AS_THEY_ARE)


def _allreduce_slices(
    slices: tf.IndexedSlices, op: int, name: str | None, process_set: ProcessSet
) -> tf.IndexedSlices:
    what = label_of("allreduce", name)
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"[tensorflow] {what} of IndexedSlices with op={name_of_op(op)} (expected Average or "
            "Sum); use tf.convert_to_tensor first, or sparse_as_dense=True"
        )
    given = node.tensor_of(slices.values, what)
    extents = [] if slices.dense_shape is None else [tf.cast(slices.dense_shape, tf.int64)]
    # Rows say neither of how many they are nor what becomes of them. The ranks agree on that by a
    # reduction of nothing, which rows wait for: it would be optimised away if nobody read it.
    nothing = tf.zeros(tf.concat([tf.constant([0], tf.int64), *extents], 0), given.dtype)
    agreed = _reduce("allreduce", [nothing], Compression.none, op, 1.0, 1.0, name, process_set)
    values, indices, _ = grouped_allgather(
        [given, slices.indices, *agreed], name and name + ".slices", process_set=process_set
    )
    if op == Average:
        values = values / tf.cast(size_of(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@node.gradient_of("AiaccAllreduce")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    name = node.name_given_to(op)
    check_gradient_op(op.get_attr("reduce_op"), f"[tensorflow] {label_of('allreduce', name)}")
    tokens = op.get_attr("token_count")
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    reduced = _run(
        "allreduce",
        dense,
        name and name + ".grad",
        op.get_attr("process_set_id"),
        op.get_attr("reduce_op"),
        op.get_attr("prescale_bits"),
        op.get_attr("postscale_bits"),
        op.get_attr("wire_format"),
    )
    return [*reduced, *[None] * tokens]
