"""Gradients of several backward passes, added up on each rank before they travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from aiacc.tensorflow.gradients import identity


class LocalAggregation:
    """Adds gradients up, and hands on the sum of every ``passes`` calls.

    Calls for other variables, as of a loop that trains two parts of a model in turn, are counted
    and added up by themselves.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        #: By the identities of variables, which are theirs while they exist.
        self._of: dict[tuple[int, ...], _Sums] = {}

    def fresh(self) -> LocalAggregation:
        """One like it that has no sums yet."""
        return LocalAggregation(self._passes, self._average)

    @property
    def several(self) -> bool:
        """Whether it is more than one pass."""
        return self._passes > 1

    def run(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], Any],
    ) -> Any:
        """Call ``update`` with the sums, in every ``passes``-th call; works in graphs, too.

        A gradient that is None adds nothing; the sum is None while all were.

        Collective: as ``update`` is, for every rank counts for itself.
        Blocks: as ``update`` does.

        Returns:
            What ``update`` gave, of one pass; None of several.
        """
        if self._passes == 1 or not grads:
            return update(list(grads))
        key = tuple(map(identity, variables))
        if key not in self._of:
            self._of[key] = _Sums(variables)
        sums = self._of[key]
        sums.add(grads)
        count = sums.count.assign_add(1)
        divisor = self._passes if self._average else 1
        last = tf.equal(count % self._passes, 0)
        tf.cond(last, lambda: sums.hand_on(divisor, update), lambda: None)
        return None


class _Sums:
    """Sums of the gradients of some variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = variables
        #: None where every gradient was None.
        self._totals: list[tf.Variable | None] = [None] * len(variables)
        with tf.init_scope():
            self.count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def add(self, grads: Sequence[Any]) -> None:
        for i, grad in enumerate(grads):
            if grad is None:
                continue
            dense = tf.convert_to_tensor(grad)
            total = self._totals[i]
            if total is None:
                with tf.init_scope():
                    zeros = tf.zeros(self._variables[i].shape, dense.dtype)
                    total = self._totals[i] = tf.Variable(zeros, trainable=False)
            total.assign_add(dense)

    def hand_on(self, divisor: int, update: Callable[[list[Any]], Any]) -> None:
        """Call ``update`` with the sums, divided, and begin new ones."""
        totals = list(self._totals)
        sums = [total if total is None else total / divisor for total in totals]
        update(sums)
        with tf.control_dependencies([total for total in sums if total is not None]):
            for total in totals:
                if total is not None:
                    total.assign(tf.zeros_like(total))
