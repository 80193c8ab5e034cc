"""Elastic jobs, under Horovod's names. Not available yet: every call says what to do instead."""

from __future__ import annotations

from typing import Any

from aiacc.collectives.elastic import refusal, run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState:
    """Variables and other values that survive the loss and the arrival of ranks.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, variables: Any = None, session: object = None, **kwargs: Any) -> None:
        del variables, session, kwargs
        raise refusal("TensorFlowState")


class TensorFlowKerasState:
    """Model, optimizer and other values that survive the loss and the arrival of ranks.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: object = None, **kwargs: Any
    ) -> None:
        del model, optimizer, backend, kwargs
        raise refusal("TensorFlowKerasState")
