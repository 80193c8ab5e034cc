"""How the script of this process has ended, as far as `atexit` can tell.

Not seen: the argument of ``sys.exit``, which Python keeps to itself.
"""

from __future__ import annotations

import sys
import traceback

_LONGEST = 200


def uncaught() -> BaseException | None:
    """The exception that ends the interpreter, None if none does. Call at exit.

    Python keeps the last exception that it has printed. Interactive sessions keep theirs in the
    same place, and live on; what they, or a test runner, have caught did not come through the
    outermost frame.
    """
    error = getattr(sys, "last_value", None)
    if hasattr(sys, "ps1") or not isinstance(error, BaseException):
        return None
    trace = error.__traceback__
    return error if trace is not None and trace.tb_frame.f_back is None else None


def goodbye() -> str:
    """What the other ranks are told at exit; it follows "rank N"."""
    error = uncaught()
    if error is None:
        return (
            "'s script has ended; call as many operations on every rank, or hvd.join() where the "
            "data ends first"
        )
    return f"'s script has ended by {_first_line(error)}; look at its traceback"


def _first_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    # That of a SyntaxError comes after the place, which is indented.
    line = next((line for line in lines if not line.startswith(" ")), type(error).__name__)
    line = line.encode(errors="replace").decode()  # a lone surrogate is no text for others
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
