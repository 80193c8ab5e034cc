"""Elastic jobs, under Horovod's names. Not available yet: every call says what to do instead."""

from __future__ import annotations

from typing import Any

from aiacc.collectives.elastic import refusal, run
from aiacc.tensorflow.keras.choice import keras

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState:
    """Model, optimizer and other values that survive the loss and the arrival of ranks.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        del model, optimizer, kwargs
        raise refusal("KerasState")


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state every so many batches.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        del state, batches_per_commit
        raise refusal("CommitStateCallback")


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of the batch in a state.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, state: Any) -> None:
        del state
        raise refusal("UpdateBatchStateCallback")


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of the epoch in a state.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, state: Any) -> None:
        del state
        raise refusal("UpdateEpochStateCallback")
