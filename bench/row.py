"""What the bench can measure. Imports nothing heavy: a row's module is loaded when it is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import ROOT

RESULTS = ROOT / "bench" / "results"
#: Sources that every row which starts ranks of aiacc depends on.
PRODUCT = ("csrc", "aiacc")


@dataclass(frozen=True)
class Row:
    """One subject: measured by one command, kept in one file, shown in one place of one page.

    Its module has:

    * ``CELLS``: the names of its cells. A cell is one measurement, in which all contenders take
      turns; it is measured, kept and replaced by itself.
    * ``measure(cell, rounds)``: what is kept of the cell, at least ``{"title": str, "unit": str,
      "samples": {contender: [[value, ...] of each job]}}``. ``rounds`` is None for the row's own
      number. A simulation gives ``"samples": {}`` and the parameters it had.
    * ``tables(runs)``: Markdown, from the kept runs of all cells. Pure.
    * ``plot(runs)``, if it has one: a figure of matplotlib.

    Attributes:
        name: As on the command line.
        title: What is compared, in a line.
        module: Where it is.
        page: Where its tables stand, between the marks ``bench:NAME``.
        paths: Sources that it depends on, besides its module.
        needs: Of "root", "gpu", "quiet" and the names of packages.
        minutes: How long all its cells take on two cores, about.
        watched: Cells that `make nightly` compares; the module says OURS and PEERS.
        simulated: Whether it computes what it shows, and has no samples.
    """

    name: str
    title: str
    module: str
    page: str
    paths: tuple[str, ...] = PRODUCT
    needs: tuple[str, ...] = ()
    minutes: float = 1.0
    watched: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def result(self) -> Path:
        """The file of its runs; a plot stands beside it."""
        return RESULTS / f"{self.name}.json"

    @property
    def mark(self) -> str:
        """What marks its place in the page."""
        return f"bench:{self.name}"

    @property
    def sources(self) -> tuple[str, ...]:
        """Paths that decide what it measures."""
        path = self.module.replace(".", "/")
        own = f"{path}.py" if (ROOT / f"{path}.py").exists() else path
        return (own, *self.paths)

    def load(self) -> Any:
        """Its module."""
        return importlib.import_module(self.module)


ROWS: tuple[Row, ...] = ()


def row_of(name: str) -> Row:
    """The row of that name.

    Raises:
        ValueError: There is none.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise ValueError(f"row {name!r} (expected some of {', '.join(row.name for row in ROWS)})")
