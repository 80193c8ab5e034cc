"""Gradients of several runs of a graph for sessions, added up on each rank before they travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


class SessionAggregation:
    """Adds the gradients of ``passes`` runs up in variables of the graph.

    As in Horovod these are local variables: `tf.compat.v1.local_variables_initializer` or a
    MonitoredTrainingSession initialises them, and no broadcast of global variables copies them.
    """

    def __init__(self, passes: int, average: bool) -> None:
        """Add ``passes`` gradients; ``average`` divides the sum by their number."""
        self._passes = passes
        self._average = average
        #: Whether this run of the graph is the last of several, by the identities of variables.
        self._last: dict[int, Any] = {}

    def add(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[list[Any]], Sequence[Any]],
    ) -> Sequence[Any]:
        """What ``reduce`` makes of the sums in every ``passes``-th run, the sums in the others.

        Collective: as ``reduce`` is, in these runs; every rank counts for itself.
        Blocks: never, it adds nodes to the graph.

        Args:
            grads: Tensors, `tf.IndexedSlices`, which become dense, or None, which stays None.
            variables: Of the gradients.
            reduce: Gives a dense tensor, or None, for each.
        """
        if self._passes == 1:
            return reduce(list(grads))
        present = [i for i, grad in enumerate(grads) if grad is not None]
        dense = [tf.convert_to_tensor(grads[i]) for i in present]
        with tf.init_scope(), v1.variable_scope(None, "aiacc_aggregation"):
            count = _local_variable("count", [], tf.int64)
            sums = [_local_variable(f"sum_{i}", g.shape, g.dtype) for i, g in enumerate(dense)]
        added = [total.assign_add(grad) for total, grad in zip(sums, dense, strict=True)]
        with tf.control_dependencies(added):
            runs = count.assign_add(1)
            last = tf.equal(runs % self._passes, 0)
        self._last.update((id(variable), last) for variable in variables)

        def finish() -> list[Any]:
            divisor = self._passes if self._average else 1
            whole: list[Any] = [None] * len(grads)
            for i, total in zip(present, sums, strict=True):
                whole[i] = total.read_value() / divisor
            with tf.control_dependencies([whole[i] for i in present]):
                emptied = [total.assign(tf.zeros_like(total)) for total in sums]
            reduced = reduce(whole)
            with tf.control_dependencies(emptied):
                return [tf.identity(reduced[i]) for i in present]

        with tf.control_dependencies([runs, *added]):
            found = tf.cond(last, finish, lambda: [total.read_value() for total in sums])
        results: list[Any] = [None] * len(grads)
        for i, result in zip(present, found, strict=True):
            results[i] = result
        return results

    def when_last(self, variables: Sequence[Any], apply: Callable[[], Any]) -> Any:
        """What ``apply`` makes; of several passes a node that runs it in the last one alone.

        That is the last one of the gradients of all ``variables``.
        """
        found = (self._last.get(id(variable)) for variable in variables)
        lasts = {id(last): last for last in found if last is not None}
        if not lasts:
            return apply()

        def apply_all() -> Any:
            with tf.control_dependencies([apply()]):
                return tf.constant(True)

        return tf.cond(
            tf.reduce_all(list(lasts.values())), apply_all, lambda: tf.constant(False)
        ).op


def _local_variable(name: str, shape: Any, dtype: Any) -> Any:
    return v1.get_variable(
        name,
        shape,
        dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
    )
