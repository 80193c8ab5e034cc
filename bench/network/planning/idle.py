"""What connections lose that start slowly again after a pause: training steps with a delay.

    python -m bench.network.planning.idle    # writes bench/results/network_idle.json, 9 minutes

Linux lets a connection that was idle for a fifth of a second find its window anew
(net.ipv4.tcp_slow_start_after_idle = 1), which takes several round trips. In a training step it is
idle while the forward pass computes.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.network import runs
from bench.network.bed import BedError, bed_for
from bench.network.planning.cells import BALANCED, LARGE_UNIT, UNIT, Cell
from bench.network.planning.contenders import CONTENDERS
from bench.network.planning.measure import one_round

RESULTS = machine.ROOT / "bench" / "results" / "network_idle.json"
WORKLOAD = "resnet50"
#: (Mbit/s of a host, milliseconds that a packet takes longer).
NETWORKS = ((1000.0, 3.0), (1000.0, 10.0), (1000.0, 20.0))
NAMES = ("dynamic", "ddp")
STEPS = 5
_FAR_MS = 2.5  # from here on the library chooses large units


def measure(mbit: float, delay_ms: float, rounds: int) -> dict[str, Any]:
    """Run jobs between four hosts, with both settings in turn; their row."""
    unit = LARGE_UNIT if delay_ms >= _FAR_MS else UNIT
    cell = Cell(WORKLOAD, mbit, delay_ms, BALANCED, steps=STEPS, unit=unit)
    contenders = [one for one in CONTENDERS if one.name in NAMES]
    seconds: dict[str, dict[str, list[float]]] = {"slow": {}, "kept": {}}
    for number in range(rounds):
        for setting in sorted(seconds, reverse=number % 2 == 0):
            chosen = replace(cell, slow_start_after_idle=setting == "slow")
            with bed_for(chosen.spec) as bed, tempfile.TemporaryDirectory() as folder:
                found = one_round(bed, Path(folder), chosen, contenders, {})
            for name, value in found.items():
                if "seconds" not in value:
                    raise BedError(f"{cell.name} {name}: {value}")
                seconds[setting].setdefault(name, []).extend(value["seconds"])
    bed_of = {name: value for name, value in asdict(cell.spec).items()
              if name != "slow_start_after_idle"}  # fmt: skip
    return {"bed": bed_of, "unit": unit, "compute_s": cell.work.compute_s,
            "seconds": seconds, "load": machine.load()}  # fmt: skip


def idle_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per network."""
    titles = {one.name: one.title for one in CONTENDERS if one.name in NAMES}
    heads = [f"{'aiacc' if name == 'dynamic' else titles[name]}, {setting}"
             for name in NAMES for setting in ("1 (default)", "0")]  # fmt: skip
    lines = [f"| Mbit/s | delay | computation | {' | '.join(heads)} |",
             "| --- " * (3 + len(heads)) + "|"]  # fmt: skip
    for row in (row for run in found for row in run["rows"]):
        times = [f"{median(row['seconds'][setting][name]):.3f} s"
                 for name in NAMES for setting in ("slow", "kept")]  # fmt: skip
        bed = row["bed"]
        cells = [f"{bed['nic_mbit']:g}", f"{bed['delay_ms']:g} ms", f"{row['compute_s']:.3f} s"]
        lines.append(f"| {' | '.join([*cells, *times])} |")
    return "\n".join(lines)


def main() -> int:
    """Measure all networks and write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.planning.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of each network (%(default)s)")
    options = parser.parse_args()
    run: dict[str, Any] = {
        **runs.begun(),
        "command": runs.command("bench.network.planning.idle", sys.argv[1:]),
        "workload": WORKLOAD,
        "rows": [],
    }
    try:
        for network in NETWORKS:
            run["rows"].append(measure(*network, options.rounds))
            print(idle_table([run]).splitlines()[-1], flush=True)
    except BedError as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    runs.save(options.json, [run])
    return 0


if __name__ == "__main__":
    sys.exit(main())
