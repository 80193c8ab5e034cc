"""``python -m bench.quantisation``: int8 in blocks and back, against a copy of the same memory.

The C++ program ``quantise_bench`` measures, on one thread and in turn: a copy of float32 numbers,
encoding them, decoding them. The ratio is that of a copy's time to that of encoding and decoding
together: the part of the copy's bandwidth that remains for numbers that go there and back. Writes
one result file.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine

RESULT = machine.ROOT / "bench" / "results" / "quantisation.json"
BINARY = machine.ROOT / "build" / "dev" / "bench" / "micro" / "quantise_bench"
COUNT = 25_000_000
#: Of a copy's bandwidth, with int8.
GOAL = 0.5
_TIMEOUT_S = 900


def measured(binary: Path, count: int, rounds: int) -> list[dict[str, Any]]:
    """What ``quantise_bench`` prints, a row for each instruction set and format.

    Raises:
        subprocess.CalledProcessError: The program found a wrong result.
    """
    command = [str(binary), str(count), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


def ratios(row: Mapping[str, Any]) -> list[float]:
    """Of each round: a copy's time by that of encoding and decoding."""
    samples = row["samples_ms"]
    rounds = zip(samples["copy"], samples["encode"], samples["decode"], strict=True)
    return [copy / (encode + decode) for copy, encode, decode in rounds]


def main() -> int:
    """Measure, write the result file, print the ratios."""
    parser = argparse.ArgumentParser(prog="python -m bench.quantisation", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file to write (%(default)s)")
    parser.add_argument("--binary", type=Path, default=BINARY, help="quantise_bench (%(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="elements (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="of each (%(default)s)")
    options = parser.parse_args()
    if not options.binary.exists():
        print(
            f"{options.binary} does not exist; cmake --build --preset dev --target quantise_bench",
            file=sys.stderr,
        )
        return 2
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    load_before = machine.load()
    rows = measured(options.binary, options.count, options.rounds)
    report: dict[str, Any] = {
        "when": began,
        "machine": machine.describe(),
        "versions": machine.versions(),
        **machine.commit(),
        "load_before": load_before,
        "elements": options.count,
        "goal": GOAL,
        "rows": [{**row, "ratio": round(median(ratios(row)), 3)} for row in rows],
        "load_after": machine.load(),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"part of a copy's bandwidth that encoding and decoding keep (goal for int8: {GOAL})")
    for row in report["rows"]:
        each = ratios(row)
        print(
            f"{row['level']:>10} {row['format']:18} {row['ratio']:.2f} "
            f"({min(each):.2f} to {max(each):.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
