"""Which rank a job failed by. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
    #: What it wrote to stderr of an error, the last line of a traceback if there is one.
    last_words: str
    #: The last line that it wrote there, which may be why it ended, or not.
    last_line: str = ""


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
    # One that a signal has interrupted is the cause, too, if others say that they have lost it.
    reasons += [ending for ending in own if ending.rank in named_ranks(own)]
    return next(iter(reasons if own else []), own[0] if own else None)


def named_ranks(endings: Iterable[Ending]) -> set[int]:
    """The ranks whose end is what others failed by, as their errors say.

    Such a rank has told the others before its process ends, and so may end after them.
    """
    words = (ending.last_words for ending in endings if ending.code != 0)
    named = (re.search(r"\brank (\d+)", one) for one in words if is_consequence(one))
    return {int(match[1]) for match in named if match}


def exit_code(endings: Sequence[Ending]) -> int:
    """The exit code of the job: that of the cause, unless the job has made it."""
    cause = first_cause(endings)
    own = [ending.code for ending in endings if ending.code != 0 and not ending.asked]
    return cause.code if cause is not None and not cause.asked else next(iter(own), 0)


def left_before(endings: Sequence[Ending], cause: Ending) -> list[Ending]:
    """Ranks that had ended well before ``cause`` failed, if that says no more than one is gone."""
    if not is_consequence(cause.last_words):
        return []
    return [ending for ending in endings if ending.code == 0 and not ending.asked]
