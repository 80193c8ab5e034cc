"""Which rank a job failed by. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiacc.run.output import is_consequence


class Ending(NamedTuple):
    """How a rank ended."""

    rank: int
    #: 128 + n for signal n.
    code: int
    #: For a message: "exit code 3".
    how: str
    #: After it was asked to end, because another one had failed.
    asked: bool
    #: Last line of what it wrote to stderr, that of a traceback if there is one.
    last_words: str


def first_cause(endings: Sequence[Ending]) -> Ending | None:
    """The rank that failed by itself; None if none did.

    A rank that fails tells the others when Python ends, after its traceback: one of them may end
    before it does, by an error that only says so.

    Args:
        endings: Of all ranks, in the order in which they ended.
    """
    failed = [ending for ending in endings if ending.code != 0]
    own = [ending for ending in failed if not ending.asked]
    told = [ending for ending in failed if ending.asked and ending.last_words]
    reasons = [ending for ending in own + told if not is_consequence(ending.last_words)]
    return next(iter(reasons if own else []), own[0] if own else None)


def left_before(endings: Sequence[Ending], cause: Ending) -> list[Ending]:
    """Ranks that had ended well before ``cause`` failed, if that says no more than one is gone."""
    if not is_consequence(cause.last_words):
        return []
    return [ending for ending in endings if ending.code == 0 and not ending.asked]
