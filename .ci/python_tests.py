"""Runs pytest twice: tests beside each other, then those that are marked `alone`.

python .ci/python_tests.py [--jobs N] [--markers EXPRESSION] [pytest's arguments ...]

The last line is pytest's summary line, of both runs together.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)\b")
NO_TESTS = 5  # pytest's exit status if none is chosen


def run(arguments: list[str]) -> tuple[int, Counter[str]]:
    """Exit status of pytest, and what its summary line counts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    counts: Counter[str] = Counter()
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if re.search(r" in [0-9.]+s", line):
            counts = Counter(
                {
                    what.rstrip("s") if what[0] in "ew" else what: int(n)
                    for n, what in COUNT.findall(line)
                }
            )
    return process.wait(), counts


def main() -> int:
    """Run both; pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=str(len(os.sched_getaffinity(0)) + 1))
    parser.add_argument("--markers", default="not nightly")
    options, rest = parser.parse_known_args()

    started = time.monotonic()
    # In the order of folders: the many small files of tests/unit come last, and fill the end.
    beside = ["-n", options.jobs, "--dist", "loadfile", "--no-loadscope-reorder", "--durations=20"]
    # The files that have such tests: to look for them in all takes ten seconds.
    have = [str(one) for one in Path("tests").rglob("test_*.py") if "mark.alone" in one.read_text()]
    files = [] if any(Path(one.split("::")[0]).exists() for one in rest) else sorted(have)
    both = [
        run(["-m", f"({options.markers}) and not alone", *beside, *rest]),
        run(["-m", f"({options.markers}) and alone", *files, *rest]),
    ]
    counts = both[0][1] + both[1][1]
    # Each run leaves out what the other one takes.
    counts.pop("deselected", None)
    shown = ", ".join(
        f"{counts[what]} {what}"
        for what in ("failed", "passed", "skipped", "error")
        if counts[what]
    )
    sys.stdout.write(
        f"===== {shown or 'no tests ran'} in {time.monotonic() - started:.2f}s =====\n"
    )
    statuses = [status for status, _ in both if status != NO_TESTS]
    return max(statuses, default=NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
