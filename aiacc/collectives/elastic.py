"""What to do as long as there are no elastic jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def refusal(name: str) -> NotImplementedError:
    """The exception to raise for ``hvd.elastic.<name>``."""
    return NotImplementedError(
        f"hvd.elastic.{name} is not available yet (expected a job whose number of ranks stays the "
        "same); save checkpoints, and let `torchrun --max-restarts N` start the job anew when a "
        "rank is lost"
    )


def run(func: Callable[..., Any]) -> NoReturn:
    """Make ``func(state, ...)`` survive the loss and the arrival of ranks.

    Raises:
        NotImplementedError: Always, for now.
    """
    del func
    raise refusal("run")
