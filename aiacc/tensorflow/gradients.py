"""Reduction of the gradients of a step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.basics import codecs_code
from aiacc.collectives.reduce_ops import Adasum, Average, Sum, gradient_factors, name_of_op
from aiacc.compression.policy import Policy
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import forms
from aiacc.tensorflow.compression import (
    Compression,
    Compressor,
    compressor_of,
    gradient_policy,
)
from aiacc.tensorflow.ops.allreduce import allreduce, grouped_allreduce
from aiacc.tensorflow.ops.topology import size_of
from aiacc.tensorflow.planned import PlannedBuckets, names_of


@dataclass(frozen=True)
class GradientReduction:
    """How gradients are reduced; what tape and optimizers have in common."""

    op: int = Average
    gradient_predivide_factor: float = 1.0
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    #: A number of groups, or lists of variables; None: each gradient by itself.
    groups: int | list[list[Any]] | None = None
    process_set: ProcessSet = global_process_set
    #: In place of groups; by the names of variables.
    plan: PlannedBuckets | None = None
    #: Divide gradients of local variables by the number of ranks.
    scale_local_gradients: bool = True
    #: Not empty: it has been looked whether a codec is for any gradient.
    _looked: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for what is wrong or does not fit together."""
        arguments.check(vars(self))
        gradient_factors(self.op, self.gradient_predivide_factor)
        compression = compressor_of(self.compression)
        if gradient_policy(compression) is not None and self.op not in (Average, Sum):
            raise ValueError(
                f"op={name_of_op(self.op)} with compression={compression} (expected Average or "
                "Sum: codecs are for sums); use Compression.bf16"
            )
        if not _are_groups(self.groups):
            raise ValueError(
                f"groups={self.groups!r:.100} (expected a positive number or a list of lists of "
                "variables)"
            )
        if self.groups is not None and self.op == Adasum:
            raise ValueError(
                f"groups={self.groups!r:.100} with op=Adasum (expected None, for gradients are "
                "combined one by one); leave them out"
            )
        if self.groups is not None and self.plan is not None:
            raise ValueError("plan and groups are given (expected at most one); leave out one")

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """Reduce gradients over the ranks; what is None on all ranks stays None.

        In a graph an operation starts as soon as its gradients are there, and a gradient is None on
        all ranks or on none. Outside of graphs all travel as one, and one that is None on some
        ranks is zero there, or has no rows.

        Collective: every rank, with gradients of the same shapes and dtypes in the same order.
        Blocks: until the results are there, outside of graphs. In a graph it blocks nothing.

        Args:
            grads: Tensors, `tf.IndexedSlices` or None.
            variables: Of the gradients; needed for groups of variables, for a plan, and for
                gradients that only this rank lacks.

        Raises:
            ValueError: The ranks have different plans, or one has not the plan's variables.
        """
        given = [self._dense(grad) for grad in grads]
        self._warn_if_idle([grad for grad in given if grad is not None])
        try:
            return self._all(given, variables)
        except tf.errors.FailedPreconditionError:  # on every rank
            if not tf.executing_eagerly() or variables is None:
                raise
            completed = forms.completed(given, variables, self.process_set)
            if completed is None:
                raise
        return self._all(completed, variables)

    def _all(self, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Reduce what is not None."""
        results = list(grads)
        present = [i for i, grad in enumerate(results) if grad is not None]
        groups = self._planned(present, results, variables)
        mark = []
        if tf.executing_eagerly():
            mark.append(forms.mark_of(results))
            if self.op == Adasum or not groups:
                grouped_allreduce(mark, op=Sum, process_set=self.process_set)
                mark.clear()
        for group in groups:
            reduced = self._reduce([results[i] for i in group], mark)
            mark = []
            for i, result in zip(group, reduced, strict=True):
                results[i] = result
        return results

    def _warn_if_idle(self, grads: Sequence[Any]) -> None:
        """Say once, on the first rank, that a codec is for none of these, and why.

        Not on one host, whose ranks send nothing in any case, unless the engine is flat.
        """
        policy = gradient_policy(compressor_of(self.compression))
        if policy is None or self._looked or not codecs_code(self.process_set):
            return
        self._looked.append(True)
        why = policy.idle(
            ("", (), "unknown shape, or sparse") if shape is None else ("", shape, grad.dtype.name)
            for grad in grads
            for shape in [_shape_of(grad)]
        )
        if why and self.process_set.rank() == 0:
            warnings.warn(why, stacklevel=3)

    def but_local(
        self, grads: Sequence[Any], variables: Sequence[Any], local: Sequence[bool]
    ) -> list[Any]:
        """Like a call, except that each rank has the gradients of some variables for itself."""
        shared = [None if is_local else g for is_local, g in zip(local, grads, strict=True)]
        reduced = shared if all(local) else self(shared, variables)
        for i, is_local in enumerate(local):
            if is_local:
                reduced[i] = self._scaled_local(grads[i])
        return reduced

    def alike_finite(self, grads: Sequence[Any], local: Sequence[bool]) -> list[Any]:
        """Make local gradients NaN where those of any rank are not finite.

        Collective: every rank. Blocks: as a call does.
        """
        own = [grad for is_local, grad in zip(local, grads, strict=True) if is_local]
        own = [_values(grad) for grad in own if grad is not None]
        wrong = [tf.logical_not(tf.reduce_all(tf.math.is_finite(values))) for values in own]
        count = tf.add_n([tf.constant(0.0), *(tf.cast(flag, tf.float32) for flag in wrong)])
        count = allreduce(count, op=Sum, process_set=self.process_set)
        poison = tf.where(count > 0, math.nan, 0.0)
        return [
            _mapped(grad, lambda values: values + tf.cast(poison, values.dtype))
            if is_local and grad is not None
            else grad
            for is_local, grad in zip(local, grads, strict=True)
        ]

    def _scaled_local(self, grad: Any) -> Any:
        if grad is None or not self.scale_local_gradients:
            return grad
        size = size_of(self.process_set)
        return _mapped(grad, lambda values: values / tf.cast(size, values.dtype))

    def _dense(self, grad: Any) -> Any:
        if self.sparse_as_dense and isinstance(grad, tf.IndexedSlices):
            return tf.convert_to_tensor(grad)
        return grad

    def _planned(
        self, present: Sequence[int], grads: Sequence[Any], variables: Sequence[Any] | None
    ) -> list[Sequence[int]]:
        """Like `_grouped`, but by the plan if there is one."""
        if self.plan is not None:
            names = names_of(variables or [])
            self.plan.agree(names, self.process_set)
            if not tf.executing_eagerly():
                sparse = {i for i in present if isinstance(grads[i], tf.IndexedSlices)}
                return self.plan.groups(names, present, sparse)
        return self._grouped(present, variables)

    def _grouped(
        self, present: Sequence[int], variables: Sequence[Any] | None
    ) -> list[Sequence[int]]:
        """Positions of the gradients that form an operation each."""
        if not present:
            return []
        if isinstance(self.groups, int):
            count = min(self.groups, len(present))
            ends = [len(present) * i // count for i in range(count + 1)]
            return [present[ends[i] : ends[i + 1]] for i in range(count)]
        if self.groups is not None and variables is not None:
            number_of = {identity(v): n for n, group in enumerate(self.groups) for v in group}
            groups: dict[int, list[int]] = {}
            for i in present:  # those in no group are numbered from below
                groups.setdefault(number_of.get(identity(variables[i]), -1 - i), []).append(i)
            return list(groups.values())
        if tf.executing_eagerly() and self.op != Adasum:
            return [present]
        return [[i] for i in present]

    def _reduce(self, grads: list[Any], mark: Sequence[Any]) -> list[Any]:
        """Reduce gradients, and what else is part of the first operation."""
        compression = compressor_of(self.compression)
        policy = gradient_policy(compression)
        if policy is None:
            return self._reduced(grads, compression, mark)
        small = [i for i, grad in enumerate(grads) if not _is_coded(grad, policy)]
        large = [i for i in range(len(grads)) if i not in small]
        reduced = dict.fromkeys(range(len(grads)))
        for members, compressor in ((large, compression), (small, Compression.none)):
            if members:
                results = self._reduced([grads[i] for i in members], compressor, mark)
                mark = ()
                reduced.update(zip(members, results, strict=True))
        return list(reduced.values())

    def _reduced(self, grads: list[Any], compression: Any, mark: Sequence[Any]) -> list[Any]:
        prescale, postscale = gradient_factors(self.op, self.gradient_predivide_factor)
        arguments: dict[str, Any] = {
            "compression": compression,
            "op": self.op,
            "process_set": self.process_set,
            "prescale_factor": prescale,
            "postscale_factor": postscale,
        }
        if len(grads) == 1 and not mark:
            return [allreduce(grads[0], **arguments)]
        return grouped_allreduce([*grads, *mark], **arguments)[: len(grads)]


def _are_groups(groups: object) -> bool:
    if groups is None or isinstance(groups, bool | int):
        return groups is None or (not isinstance(groups, bool) and groups > 0)
    return isinstance(groups, list | tuple) and all(
        isinstance(group, list | tuple) and all(hasattr(variable, "assign") for variable in group)
        for group in groups
    )


def _is_coded(grad: Any, policy: Policy) -> bool:
    shape = _shape_of(grad)
    return shape is not None and policy.compresses("", shape, grad.dtype.name)


def _shape_of(grad: Any) -> list[int] | None:
    """None: it is sparse, or not known."""
    if isinstance(grad, tf.IndexedSlices) or not grad.shape.is_fully_defined():
        return None
    return list(grad.shape.as_list())


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)


def _mapped(grad: Any, change: Callable[[Any], Any]) -> Any:
    """A gradient like ``grad``, sparse if that is, of what ``change`` makes of its values."""
    values = change(_values(grad))
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return values


def identity(variable: Any) -> int:
    """Equal for a Keras variable and the one of TensorFlow in it."""
    value = None if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    return id(value if isinstance(value, tf.Variable) else variable)


def resolve_groups(
    num_groups: int, groups: int | list[list[Any]] | None
) -> int | list[list[Any]] | None:
    """``groups``, or the deprecated ``num_groups``; both 0 and None mean none."""
    return groups if groups is not None else num_groups or None


def variables_of(local_layers: Any) -> list[Any]:
    """Trainable variables of a Keras layer, or of several.

    Raises:
        ValueError: One is no layer, or has no variables yet.
    """
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, list | tuple) else [layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers has {layer!r:.100} (expected layers of Keras)")
        if not getattr(layer, "built", True):
            raise ValueError(
                f"local_layers has {layer.name!r}, which is not built (expected a layer that has "
                "its variables); call the model on data, or model.build, before"
            )
    return [variable for layer in layers for variable in layer.trainable_weights]
