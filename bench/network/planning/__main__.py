"""``python -m bench.network.planning``: plans on capped virtual hosts, predicted and measured.

Four hosts with one rank each, engine tcp. In each cell `aiacc-plan probe` measures the network, all
planners plan for it, and the optimizer trains with each plan; DistributedDataParallel over gloo
does so with its own buckets and with ours. The device is modelled: a step computes about as long as
its gradients take on the wire (--compute-ratio), or as long as on a published device.

Results are written after each cell, and cells that the file has are not measured again: what was
interrupted goes on where it was. Needs root, see bench/README.md.
"""

import argparse
import sys
from pathlib import Path

from bench.network import runs
from bench.network.bed import BedError
from bench.network.planning.cells import Cell, chosen
from bench.network.planning.contenders import CONTENDERS, taking_part
from bench.network.planning.measure import measure, predicted_again, probed_again
from bench.network.planning.report import RESULT, report


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    try:
        if options.predict or options.probe:
            names = [cell.name for cell in chosen(options.cells, options.compute_ratio)]
            for run in runs.kept(options.json, add=True):
                if options.probe and run["cell"]["name"] in names:
                    runs.record(options.json, probed_again(run))
                elif options.predict:
                    runs.record(options.json, predicted_again(run))
            return 0
        if options.report or options.write:
            report(options.json, write=options.write)
            return 0
        return _measure(options)
    except (BedError, ValueError, RuntimeError) as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    cells = chosen(options.cells, options.compute_ratio)
    only = options.only.split(",") if options.only else []
    strange = sorted(set(only) - {one.name for one in CONTENDERS})
    if strange:
        raise ValueError(f"--only {strange[0]} (expected {', '.join(o.name for o in CONTENDERS)})")
    done = [run["cell"]["name"] for run in runs.kept(options.json, add=not options.again)]
    left = [cell for cell in cells if cell.name not in done]
    estimates = [
        cell.estimate_s(sum(one.name != "auto" for one in taking_part(cell, 0))) for cell in left
    ]
    print(f"{len(left)} of {len(cells)} cells, about {sum(estimates) / 60:.0f} minutes", flush=True)
    for cell, seconds in zip(left, estimates, strict=True):
        print(f"{cell.name}: about {seconds / 60:.0f} minutes", flush=True)
        if not options.list:
            runs.record(options.json, measure(_with(cell, options), only))
    return 0


def _with(cell: Cell, options: argparse.Namespace) -> Cell:
    given = {name: getattr(options, name) for name in ("rounds", "steps", "auto_rounds")}
    known = {name: value for name, value in given.items() if value is not None}
    return Cell(**{**vars(cell), **known})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.planning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cells",
        default="default",
        metavar="A,B",
        help="default (about an hour), all (some hours), or MODEL:MBIT:DELAY_MS:RATIO",
    )
    parser.add_argument("--compute-ratio", type=float, metavar="R", help="for all cells")
    parser.add_argument("--only", default="", metavar="A,B", help="some contenders")
    parser.add_argument("--rounds", type=int, metavar="N", help="jobs with all contenders")
    parser.add_argument("--steps", type=int, metavar="N", help="that count, per job")
    parser.add_argument("--auto-rounds", type=int, metavar="N", help='jobs with plan="auto"')
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--list", action="store_true", help="say what would be measured")
    parser.add_argument(
        "--predict", action="store_true", help="what the file has again, from its probes"
    )
    parser.add_argument(
        "--probe", action="store_true", help="the networks of --cells again, to predict from that"
    )
    parser.add_argument("--report", action="store_true", help="print the tables, measure nothing")
    parser.add_argument(
        "--write", action="store_true", help="the tables of docs/planning.md and the plot"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
