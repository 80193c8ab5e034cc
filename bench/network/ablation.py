"""What lanes, size of units, hierarchy and negotiation are each worth in a training step.

python -m bench.network.ablation        # writes bench/results/network_ablation.json
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.network import runs, training
from bench.network.bed import BedError, bed_for
from bench.network.plan import Spec

RESULTS = machine.ROOT / "bench" / "results" / "network_ablation.json"
WORKLOAD = "resnet50"
LANES = (1, 4, 8)
UNITS = ("256KiB", "1MiB", "8MiB")

#: Ways to agree on gradients. "bits": each as it comes, known ones as bits. "names": each as it
#: comes, by name every time. "once": all of them together, after the backward pass.
NEGOTIATIONS = ("bits", "names", "once")


@dataclass(frozen=True)
class Setting:
    """One row; the default is that of aiacc.

    Attributes:
        lanes: AIACC_LANES.
        unit: AIACC_UNIT_BYTES.
        engine: AIACC_ENGINE.
        negotiation: One of NEGOTIATIONS.
    """

    lanes: int = 4
    unit: str = "1MiB"
    engine: str = "tcp"
    negotiation: str = "bits"

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.engine}-{self.lanes}-{self.unit}-{self.negotiation}"

    def contender(self) -> training.Contender:
        """Whom to measure; the first step of a job never counts."""
        variables = {
            "AIACC_ENGINE": self.engine,
            "AIACC_LANES": str(self.lanes),
            "AIACC_UNIT_BYTES": self.unit,
        }
        if self.negotiation == "names":
            variables["AIACC_CACHE_CAPACITY"] = "0"
        groups = 1 if self.negotiation == "once" else 0
        return training.Contender(self.name, self.name, "aiacc", variables, 0, groups)


def settings() -> list[Setting]:
    """What is measured: lanes x units, lanes x hierarchy, and the negotiation by itself. Pure."""
    found = [Setting(lanes, unit) for lanes in LANES for unit in UNITS]
    found += [Setting(lanes, engine="hierarchical") for lanes in LANES]
    found += [replace(Setting(), negotiation=how) for how in NEGOTIATIONS]
    return list(dict.fromkeys(found))


def ablation_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per setting; where one was measured again, the last one counts."""
    factors = [field.name for field in fields(Setting)]
    rows = {Setting(**{name: row[name] for name in factors}): row
            for run in runs for row in run["rows"]}  # fmt: skip
    times = {setting: median(row["seconds"]) for setting, row in rows.items()}
    default = times.get(Setting())
    lines = ["| engine | AIACC_LANES | AIACC_UNIT_BYTES | negotiation | step | over the default "
             "| rounds, bytes of negotiation per step |", "| --- " * 7 + "|"]  # fmt: skip
    for setting in settings():
        if setting in times:
            time = times[setting]
            cells = [setting.engine, str(setting.lanes), setting.unit, setting.negotiation]
            cells += [f"{time:.2f} s", f"{time / default:.2f}x" if default else ""]
            row = rows[setting]
            cells.append(f"{row['rounds_per_step']:.0f}, {row['control_bytes_per_step']:,.0f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure the settings, write the file."""
    options = _options()
    chosen = [one for one in settings() if not options.only or one.name in options.only]
    spec = Spec(
        options.name,
        hosts=options.hosts,
        flow_mbit=options.flow_mbit,
        nic_mbit=options.nic_mbit,
        congestion="cubic",
    )
    run: dict[str, Any] = {
        **runs.begun(),
        "command": runs.command("bench.network.ablation", sys.argv[1:]),
        "workload": WORKLOAD,
        "bed": asdict(spec),
        "per_host": options.per_host,
        "rows": [],
    }
    try:
        with bed_for(spec) as bed:
            for setting in chosen:
                found = training.job(
                    bed,
                    WORKLOAD,
                    setting.contender(),
                    steps=options.steps,
                    timeout_s=options.timeout,
                    per_host=options.per_host,
                )
                run["rows"].append({**asdict(setting), **found, "load": machine.load()})
                print(f"{setting.name}: {median(found['seconds']):.2f} s per step", flush=True)
    except (BedError, RuntimeError) as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    finally:
        if run["rows"]:
            runs.save(options.json, [*runs.kept(options.json, options.add), run])
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [one.name for one in settings()]
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument("--add", action="store_true", help="keep the runs that the file has")
    parser.add_argument("--only", nargs="+", choices=names, metavar="SETTING", help=str(names))
    parser.add_argument("--name", default="ablation", help="of the bed (%(default)s)")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=2, help="ranks on each (%(default)s)")
    parser.add_argument("--flow-mbit", type=float, default=75, metavar="MBIT")
    parser.add_argument("--nic-mbit", type=float, default=250, metavar="MBIT")
    parser.add_argument("--steps", type=int, default=2, help="of each job (%(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per job (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
