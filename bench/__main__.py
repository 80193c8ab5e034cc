"""Measures rows, keeps their results, and writes the tables of the pages.

python -m bench --list                          # what can be measured, and what it needs
python -m bench network.training                # measure and print
python -m bench network.training --write        # keep the result; its table and plot, too
python -m bench network.training:resnet50:300   # one cell
python -m bench --write                         # all tables and plots from kept results
python -m bench --check                         # what a rival would not sign; 1 if there is any
python -m bench --alarm                         # watched cells beside what is kept; 1 if slower
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from typing import Any

from bench import overview, record
from bench.alarm import watch
from bench.machine import ROOT
from bench.plots import save
from bench.row import ROWS, Row, row_of
from bench.tables import between_marks, section


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends the ranks, too
    try:
        if options.rows == ["all"]:
            options.rows = [row.name for row in ROWS if "gpu" not in row.needs]
        chosen = [_chosen(text) for text in options.rows] or [(row, None) for row in ROWS]
        if options.list:
            for row, cell in chosen:
                _say(row, cell)
            return 0
        if options.check:
            found = [line for row, _ in chosen for line in problems(row)]
            found += overview.problems()
            print(*(found or ["all results can be signed"]), sep="\n")
            return 1 if found else 0
        if options.alarm:
            return watch(lambda row, cell: _run(row, cell, options.rounds))
        if not options.rows and not options.write:
            raise ValueError("no row (expected some; python -m bench --list names them)")
        kept = [row for row, _ in chosen if "gpu" not in row.needs]
        if options.write and options.rows and kept and (reason := record.refusal(kept)):
            raise ValueError(f"--write: {reason}")
        wrong = False
        for row, cell in chosen:
            runs = _measured(row, cell, options) if options.rows else record.read(row.result)
            if options.write:
                publish(row, runs)
            else:
                print(section(row.load(), runs))
            texts = [text for run in runs for text in run.get("wrong", ())]
            for text in texts:
                print(f"[bench] wrong: {text}", file=sys.stderr)
            wrong |= bool(texts)
        if options.write:
            overview.publish()
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        print(f"[bench] {error}", file=sys.stderr)
        return 2
    return 1 if wrong else 0


def problems(row: Row) -> Iterator[str]:
    """What is wrong with the results of a row and their tables."""
    runs = record.read(row.result)
    if not runs and "gpu" not in row.needs:
        yield f"{row.name}: not measured"
    yield from record.problems(row, runs)
    for run in runs:
        yield from (f"{row.name}:{run['cell']}: {text}" for text in run.get("wrong", ()))
    yield from record.stale(row, runs)
    text = (ROOT / row.page).read_text()
    if between_marks(text, row.mark, section(row.load(), runs), row.page) != text:
        yield f"{row.page}: its table of {row.name} is not that of the result; make docs"


def publish(row: Row, runs: list[record.Run]) -> None:
    """Put the table of a row into its page, and draw its plot."""
    page, module = ROOT / row.page, row.load()
    page.write_text(between_marks(page.read_text(), row.mark, section(module, runs), row.page))
    if runs and hasattr(module, "plot"):
        save(module.plot(runs), row.result.with_suffix(".svg"))


def _measured(row: Row, cell: str | None, options: argparse.Namespace) -> list[record.Run]:
    """The runs of a row, of which those of the chosen cells are new.

    Those of a GPU are kept whatever they lack: the machine is lent for minutes, often with a copy
    of the tree that has no history. --check names what they lack.
    """
    module: Any = row.load()
    fresh = []
    for name in module.CELLS if cell is None else [cell]:
        run = _run(row, name, options.rounds)
        fresh.append(run)
        if options.write:
            short = list(record.problems(row, [run]))
            if short and "gpu" not in row.needs:
                raise ValueError(f"not kept: {'; '.join(short)}")
            record.write(row.result, run, module.CELLS)
    return record.read(row.result) if options.write else fresh


def _run(row: Row, cell: str, rounds: int | None) -> record.Run:
    begun = record.begun(sys.argv[1:])
    print(f"[bench] {row.name}:{cell}", file=sys.stderr, flush=True)
    return record.finished(begun, cell, row.load().measure(cell, rounds))


def _chosen(text: str) -> tuple[Row, str | None]:
    """The row and the cell of ``ROW`` or ``ROW:CELL``."""
    name, _, cell = text.partition(":")
    row = row_of(name)
    if cell and cell not in row.load().CELLS:
        raise ValueError(f"cell {cell!r} (expected one of {', '.join(row.load().CELLS)})")
    return row, cell or None


def _say(row: Row, cell: str | None) -> None:
    needs = f"; needs {', '.join(row.needs)}" if row.needs else ""
    module = row.load()
    title = module.__doc__.splitlines()[0].removeprefix(f"Row {row.name}: ").rstrip(".")
    print(f"{row.name}: {title} (about {row.minutes:g} minutes{needs}; {row.page})")
    for name in [cell] if cell else module.CELLS:
        print(f"  {row.name}:{name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW[:CELL]", help="see --list; or all, but of GPUs"
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--check", action="store_true", help="say what is wrong with results")
    parser.add_argument("--alarm", action="store_true", help="say what has become slower")
    parser.add_argument("--write", action="store_true", help="keep results, write the pages")
    parser.add_argument("--rounds", type=int, metavar="N", help="in place of a row's own number")
    return parser


if __name__ == "__main__":
    sys.exit(main())
