"""Where the ranks of one `tests.support.ranks.run_ranks` meet, without what is tested."""

from __future__ import annotations

from multiprocessing.connection import Connection

#: To the process that runs the ranks; None in any other process.
runner: Connection | None = None


def meet() -> None:
    """Block until every rank that is not to be missing is here or has returned."""
    if runner is not None:
        runner.send(("met", None))
        runner.recv()
