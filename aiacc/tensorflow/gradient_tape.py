"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.tensorflow import node
from aiacc.tensorflow.compression import Compression, Compressor
from aiacc.tensorflow.gradients import (
    GradientReduction,
    identity,
    resolve_groups,
    variables_of,
)
from aiacc.tensorflow.recorder import record


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape that reduces the gradients of ``gradtape`` over all ranks.

    Its ``gradient(target, sources, output_gradients)`` is collective: every rank has to call it,
    for variables of the same shapes and dtypes in the same order. In a `tf.function` each gradient
    travels as soon as it is there, while the others are computed. ``register_local_source``
    excepts a variable. Outside of graphs a gradient that only some ranks have is zero on the
    others, or has no rows there.

    Collective: no.
    Blocks: never.

    Args:
        gradtape: The tape to take gradients from, before, in or after its recording.
        device_dense: Accepted because Horovod has it: tensors travel from host memory.
        device_sparse: As ``device_dense``.
        compression: Form in which gradients travel.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors; otherwise the rows of all ranks
            are gathered.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: Divides gradients before the sum by it, and the sum by the rest
            of the number of ranks; with op=Average.
        num_groups: Deprecated spelling of ``groups`` as a number.
        groups: Number of groups, or lists of variables, whose gradients are reduced together when
            the last of a group is there; variables in no list are reduced singly.
        process_set: Ranks that take part.
        scale_local_gradients: Divide the gradients of local sources by the number of ranks, so that
            one learning rate suits all.

    Returns:
        Tape of a class derived from `tf.GradientTape`.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument.
    """
    arguments.check(locals(), gradtape=arguments.of(tf.GradientTape, "a tf.GradientTape"))
    del device_dense, device_sparse
    if isinstance(gradtape, _DistributedTape):
        raise ValueError(
            "gradtape is a DistributedGradientTape (expected the tf.GradientTape that it was made "
            "of, or its gradients would be reduced twice); wrap each tape once"
        )
    return _DistributedTape(
        gradtape,
        GradientReduction(
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            groups=resolve_groups(num_groups, groups),
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        ),
    )


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """`DistributedGradientTape` that leaves the variables of some layers to each rank.

    Other arguments are those of `DistributedGradientTape`.

    Args:
        gradtape: See there.
        device_dense: See there.
        device_sparse: See there.
        compression: See there.
        sparse_as_dense: See there.
        op: See there.
        gradient_predivide_factor: See there.
        num_groups: See there.
        groups: See there.
        process_set: See there.
        local_layers: A built Keras layer, or several, whose gradients are not reduced.
        scale_local_gradients: See there.

    Raises:
        ValueError: A bad argument; a layer without its variables.
    """
    given = locals()
    local = variables_of(given.pop("local_layers"))
    tape: Any = DistributedGradientTape(**given)
    for variable in local:
        tape.register_local_source(variable)
    return tape


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """Hands everything on to the tape that it was made of."""

    def __init__(self, tape: tf.GradientTape, reduction: GradientReduction) -> None:
        super().__init__()
        self._inner = tape
        self._reduction = reduction
        self._local: set[int] = set()

    def __enter__(self) -> _DistributedTape:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def watch(self, tensor: Any) -> None:
        """See `tf.GradientTape.watch`."""
        self._inner.watch(tensor)

    def stop_recording(self) -> Any:
        """See `tf.GradientTape.stop_recording`."""
        return self._inner.stop_recording()

    def reset(self) -> None:
        """See `tf.GradientTape.reset`."""
        self._inner.reset()

    def watched_variables(self) -> Any:
        """See `tf.GradientTape.watched_variables`."""
        return self._inner.watched_variables()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """See `tf.GradientTape.jacobian`; of this rank alone."""
        return self._inner.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """See `tf.GradientTape.batch_jacobian`; of this rank alone."""
        return self._inner.batch_jacobian(*args, **kwargs)

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable of TensorFlow or Keras to each rank."""
        self._local.add(identity(source))

    @node.plain
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **arguments: Any,
    ) -> Any:
        """Gradients of ``target``, reduced over the ranks.

        Collective: every rank, for sources of the same shapes and dtypes in the same order.
        Blocks: until the results are there, outside of graphs. In a graph it blocks nothing.

        Args:
            target: See `tf.GradientTape.gradient`.
            sources: See `tf.GradientTape.gradient`; any nesting of them.
            output_gradients: See `tf.GradientTape.gradient`.
            use_generic_names: Accepted because Horovod has it: names never depend on variables'.
            **arguments: Others of `tf.GradientTape.gradient`.

        Raises:
            tf.errors.OpError: The operation failed: FailedPreconditionError if the ranks disagree.
        """
        del use_generic_names
        grads = self._inner.gradient(target, sources, output_gradients, **arguments)
        flat, variables = _flat(grads), _flat(sources)
        local = [identity(variable) in self._local for variable in variables]
        reduction = self._reduction
        record(flat, variables, local, reduction.sparse_as_dense, reduction.process_set)
        reduced = reduction.but_local(flat, variables, local)
        return tf.nest.pack_sequence_as(sources, reduced, expand_composites=False)


def _flat(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure, expand_composites=False))
