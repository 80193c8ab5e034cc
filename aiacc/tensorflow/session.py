"""Optimizer and hook for graphs and sessions of `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from aiacc import arguments
from aiacc.tensorflow.functions import broadcast_global_variables
from aiacc.tensorflow.gradients import GradientReduction
from aiacc.tensorflow.recorder import record
from aiacc.tensorflow.session_aggregation import SessionAggregation


class SessionOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of `tf.compat.v1.train` that applies the gradients of all ranks.

    `aiacc.tensorflow.DistributedOptimizer` makes it. ``compute_gradients``, and so ``minimize``, is
    collective: every rank has to run what it gives, for variables of the same shapes and dtypes in
    the same order.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reduction: GradientReduction,
        aggregation: SessionAggregation,
    ) -> None:
        """Wrap ``optimizer``, which has the state."""
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._wrapped = optimizer
        self._reduction = reduction
        self._aggregation = aggregation
        self._local: set[int] = set()

    def register_local_var(self, variable: Any) -> None:
        """Leave the gradient of a variable to each rank."""
        self._local.add(id(variable))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Gradients with their variables, as of the wrapped optimizer, reduced over the ranks.

        Of several passes for a step the last gives the reduced sums, the others those so far.
        """
        pairs = self._wrapped.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        local = [id(variable) in self._local for variable in variables]
        reduction = self._reduction
        record(grads, variables, local, reduction.sparse_as_dense, reduction.process_set)
        reduced = self._aggregation.add(
            grads, variables, lambda sums: reduction.but_local(sums, variables, local)
        )
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer; of several passes the last applies gradients."""
        pairs = list(grads_and_vars)
        return self._aggregation.when_last(
            [variable for _, variable in pairs],
            lambda: self._wrapped.apply_gradients(pairs, *args, **kwargs),
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer."""
        return self._wrapped.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer."""
        return self._wrapped.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer."""
        return self._wrapped.variables(*args, **kwargs)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Copies all variables from one rank to all, whenever a session is made.

    For `tf.compat.v1.train.MonitoredTrainingSession`, for example.

    Collective: every rank.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Copy from the global rank ``root_rank``; ``device`` is not used."""
        arguments.check({"root_rank": root_rank})
        super().__init__()
        del device
        self._root_rank = root_rank
        self._node: Any = None

    def begin(self) -> None:
        """Add the node to the graph, which is complete."""
        if self._node is None or self._node.graph is not tf.compat.v1.get_default_graph():
            self._node = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the node. Blocks: until all ranks are here."""
        del coord
        session.run(self._node)
