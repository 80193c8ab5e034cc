"""The forms of gradients, outside of graphs: what ranks do that lack gradients which others have.

A rank cannot know what others have. So with the first gradients of a step travels a tensor without
elements whose shape is made of their forms. Where these differ, the operation fails on all ranks,
which then tell each other what they have, and begin again; where they do not, it costs nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from aiacc.collectives.dtypes import DTYPE_CODES
from aiacc.collectives.reduce_ops import Sum
from aiacc.process_sets import ProcessSet
from aiacc.tensorflow.ops.allreduce import allreduce

_MISSING = "missing"
_DENSE = "dense"
_SLICES = {
    (dtype, sized): f"tf.IndexedSlices of {dtype.name}{'' if sized else ' without dense_shape'}"
    for dtype in map(tf.as_dtype, DTYPE_CODES)
    if dtype.is_integer
    for sized in (True, False)
}
_FORMS = (_MISSING, _DENSE, *_SLICES.values())


def _form_of(grad: Any) -> str:
    if grad is None:
        return _MISSING
    if isinstance(grad, tf.IndexedSlices):
        return _SLICES[grad.indices.dtype, grad.dense_shape is not None]
    return _DENSE


def mark_of(grads: Sequence[Any]) -> Any:
    """A tensor without elements, of another shape for other forms. Pure."""
    return tf.zeros((0, zlib.crc32(bytes(_FORMS.index(_form_of(grad)) for grad in grads))))


def completed(
    grads: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet
) -> list[Any] | None:
    """``grads`` with zeros, or no rows, for those that this rank lacks and another has.

    Collective: every rank, with as many gradients.
    Blocks: until all have told what they have.

    Args:
        grads: Tensors, `tf.IndexedSlices` or None.
        variables: Of the gradients.
        process_set: Ranks that reduce them.

    Returns:
        None if forms are the same on all ranks, or they have different numbers of gradients.

    Raises:
        tf.errors.FailedPreconditionError: On every rank, if one has several forms.
    """
    own = [_FORMS.index(_form_of(grad)) for grad in grads]
    told = tf.one_hot(own, len(_FORMS), dtype=tf.int32)
    try:
        counts = allreduce(told, op=Sum, name="forms of gradients", process_set=process_set)
    except tf.errors.FailedPreconditionError:
        return None
    results = list(grads)
    differ = False
    for i, row in enumerate(counts.numpy()):
        found = {form: int(count) for form, count in zip(_FORMS, row, strict=True) if count}
        differ = differ or len(found) > 1
        missing = found.pop(_MISSING, 0)
        if len(found) > 1:
            ranks = " and ".join(f"{form} on {count} of the ranks" for form, count in found.items())
            name = getattr(variables[i], "path", None) or getattr(variables[i], "name", "a tensor")
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"[tensorflow] gradient {i}, of {name!r}, is {ranks} (expected one form); pass "
                "sparse_as_dense=True",
            )
        if missing and found and results[i] is None:
            results[i] = _nothing(variables[i], *found)
    return results if differ else None


def _nothing(variable: Any, form: str) -> Any:
    value = tf.convert_to_tensor(variable)
    if form == _DENSE:
        return tf.zeros_like(value)
    dtype, sized = next(key for key, name in _SLICES.items() if name == form)
    shape = tf.shape(value) if sized else None
    return tf.IndexedSlices(value[:0], tf.zeros((0,), dtype), shape)
