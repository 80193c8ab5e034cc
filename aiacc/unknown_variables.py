"""Variables that begin like aiacc's own and are none: what to say about them. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

#: Read by the build and by the benchmarks, and no setting of a job.
_ELSEWHERE = frozenset({"AIACC_MPICC", "AIACC_SKIP_CMAKE", "AIACC_BED", "AIACC_BED_HOSTS"})


def warning_about(variables: Mapping[str, str], known: Collection[str]) -> str:
    """One text that names the unknown ones, each with the name that it may stand for; "" if none.

    Args:
        variables: Variables of the environment, of any name; empty ones count as unset.
        known: Names that have an effect.
    """
    unknown = [
        name
        for name, value in sorted(variables.items())
        if name.startswith("AIACC_") and value and name not in known and name not in _ELSEWHERE
    ]
    if not unknown:
        return ""
    named = [name + guess(name, known) for name in unknown]
    which = "is no variable" if len(named) == 1 else "are no variables"
    return (
        f"[config] {', '.join(named)} {which} of aiacc and without effect; `aiaccrun --help-env` "
        "prints those that have one"
    )


def guess(name: str, known: Collection[str]) -> str:
    """Which of the known names one may stand for, as the rest of a phrase; "" for none."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""
