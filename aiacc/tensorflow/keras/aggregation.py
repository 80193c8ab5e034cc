"""Gradients of several backward passes, added up on each rank before they travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class LocalAggregation:
    """Adds gradients up, and hands on the sum of every ``passes`` calls."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        #: None where a gradient is None.
        self._sums: list[tf.Variable | None] = []
        self._count: tf.Variable | None = None

    def fresh(self) -> LocalAggregation:
        """One like it that has no sums yet."""
        return LocalAggregation(self._passes, self._average)

    @property
    def several(self) -> bool:
        """Whether it is more than one pass."""
        return self._passes > 1

    def run(self, grads: Sequence[Any], update: Callable[[list[Any]], Any]) -> Any:
        """Call ``update`` with the sums, in every ``passes``-th call; works in graphs, too.

        Collective: as ``update`` is, for every rank counts for itself.
        Blocks: as ``update`` does.

        Returns:
            What ``update`` gave, of one pass; None of several.
        """
        if self._passes == 1 or not grads:
            return update(list(grads))
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        if self._count is None:
            self._make_variables(dense)
        for total, grad in zip(self._sums, dense, strict=True):
            if total is not None:
                total.assign_add(grad)
        count = self._count.assign_add(1)  # type: ignore[union-attr]
        tf.cond(tf.equal(count % self._passes, 0), lambda: self._finish(update), lambda: None)
        return None

    def _finish(self, update: Callable[[list[Any]], Any]) -> None:
        divisor = self._passes if self._average else 1
        sums = [total if total is None else total / divisor for total in self._sums]
        update(sums)
        with tf.control_dependencies([total for total in sums if total is not None]):
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))

    def _make_variables(self, grads: Sequence[Any]) -> None:
        with tf.init_scope():
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._sums = [
                None if grad is None else tf.Variable(tf.zeros(grad.shape, grad.dtype))
                for grad in grads
            ]
