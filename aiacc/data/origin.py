"""Where samples come from at first: the user's dataset, which may fail for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

#: Errors that another attempt may not meet.
TRANSIENT: tuple[type[Exception], ...] = (OSError,)
#: Those of them that it would meet again.
PERMANENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


def pause_before(attempt: int, chance: float) -> float:
    """Seconds to wait before the ``attempt``-th repetition, from 1. Pure.

    It doubles from 0.1 s to 10 s, and ``chance``, from 0 to 1, makes it shorter by up to one half,
    so that those who failed together do not come back together.
    """
    return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S) * (1 - chance / 2)


def fetch(
    read: Callable[[], Any],
    retries: int,
    retry_on: tuple[type[Exception], ...],
    on_retry: Callable[[], None],
    pause: Callable[[float], object] = time.sleep,
) -> Any:
    """The result of ``read``, with up to ``retries`` repetitions after errors of ``retry_on``.

    Blocks: as ``read`` does, and in the pauses between attempts.

    Raises:
        Exception: What the last attempt raised.
    """
    for attempt in range(1, retries + 1):
        try:
            return read()
        except retry_on as error:
            if isinstance(error, PERMANENT) and not any(kind in retry_on for kind in PERMANENT):
                raise
            on_retry()
            pause(pause_before(attempt, random.random()))
    return read()
