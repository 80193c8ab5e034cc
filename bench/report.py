"""Until all rows are those of `python -m bench`: what the others still write their tables with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import ROOT
from bench.tables import between_marks

FOLDER = ROOT / "bench" / "results"


def between_markers(text: str, table: str, where: str, mark: str) -> str:
    """``text`` with ``table`` between the two lines that mark its place."""
    return between_marks(text, mark, table, where)


def publish(
    text: str, page: Path, mark: str, path: Path, plot: Callable[[], Any] | None, *, write: bool
) -> None:
    """Print tables, or put them between the marks of a page and save the plot.

    Args:
        text: Markdown.
        page: Where it belongs.
        mark: That of its place.
        path: The result file; a figure goes beside it.
        plot: Draws the figure; None: there is none.
        write: Whether to write anything.
    """
    if not write:
        print(text)
        return
    page.write_text(between_markers(page.read_text(), text, str(page), mark))
    if plot is not None:
        figure = plot()
        figure.tight_layout()
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
