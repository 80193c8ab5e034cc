"""``python -m bench.network.second_order``: steps of K-FAC on capped virtual hosts.

One rank in each host, engine tcp. In each cell `aiacc-plan probe` measures the network, the
simulator says how D-KFAC, MPD-KFAC, SPD-KFAC as published and ours do a step of ResNet-50 there,
and they do it. The device is modelled: as much slower than the published GPU as the network is, so
that factors take the same share of a step. Dimensions are divided (SHRINK), the times of the device
are not.

Results are written after each cell, and cells that the file has are not measured again. Needs root,
see bench/README.md.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.network import runs
from bench.network.bed import BedError
from bench.network.second_order.cells import chosen
from bench.network.second_order.measure import measure
from bench.network.second_order.report import RESULT, report


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    try:
        if options.report or options.write:
            report(options.json, write=options.write)
            return 0
        return _measure(options)
    except (BedError, ValueError, RuntimeError) as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    done = [run["cell"]["name"] for run in runs.kept(options.json, add=not options.again)]
    left = [cell for cell in chosen(options.cells) if cell.name not in done]
    given = {name: getattr(options, name) for name in ("rounds", "steps")}
    left = [replace(one, **{k: v for k, v in given.items() if v is not None}) for one in left]
    for cell in left:
        print(f"{cell.name}: about {cell.estimate_s() / 60:.0f} minutes", flush=True)
        if not options.list:
            runs.record(options.json, measure(cell))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.second_order",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default="default", metavar="A,B", help="or HOSTS:MBIT:SHRINK")
    parser.add_argument("--rounds", type=int, metavar="N", help="jobs with all contenders")
    parser.add_argument("--steps", type=int, metavar="N", help="that count, per job")
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--list", action="store_true", help="say what would be measured")
    parser.add_argument("--report", action="store_true", help="print the table, measure nothing")
    parser.add_argument("--write", action="store_true", help="the table of docs/kfac.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
