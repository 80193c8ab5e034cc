"""Runs the stages of `make test` and `.ci/run`, one after the other, and says how long each took.

python3 .ci/stages.py NAME=COMMAND ...

A stage is a line for bash. One whose name begins with "+" runs beside the one before it; what it
prints is shown when it has ended. After a failed stage the others go on, unless its name ends with
"!". At the end come the times, which build/times.json has, too, then the lines that tell why stages
failed, and pytest's summary line if one of them ran `.ci/python_tests.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build"
#: What tells why a stage failed.
TELLING = re.compile(
    r"^(FAILED|ERROR) |(error|warning): |: Failure$|: runtime error: |\*\*\*(Failed|Timeout)|"
    r"\*\*\*Exception|(ERROR|WARNING|SUMMARY): [A-Z][a-z]+Sanitizer|^make: \*\*\*"
)
SUMMARY = re.compile(r"^=+ .*\b(passed|failed|error|skipped)\b.* in [0-9.]+s")


@dataclass
class Stage:
    """One line for bash, and what became of it."""

    name: str
    command: str
    must: bool = False  # nothing follows if it fails
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    status: int = 0
    lines: list[str] = field(default_factory=list)

    def run(self, *, echo: bool) -> None:
        """Run it; show each line as it comes, or keep all."""
        started = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            if echo:
                say(self.lines[-1])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - started
        self.cpu_seconds = usage.ru_utime + usage.ru_stime


def say(text: str) -> None:
    """Print a line at once: a log is read while it grows."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def groups(arguments: list[str]) -> list[list[Stage]]:
    """Stages that run beside each other, group after group."""
    found: list[list[Stage]] = []
    for argument in arguments:
        name, equals, command = argument.partition("=")
        if not equals or not name or not command:
            sys.exit(f"{argument!r} is no stage (expected NAME=COMMAND)")
        stage = Stage(name.lstrip("+").rstrip("!"), command, must=name.endswith("!"))
        if name.startswith("+") and found:
            found[-1].append(stage)
        else:
            found.append([stage])
    return found


def run_group(stages: list[Stage], started: float) -> None:
    """Run the first in sight, and the others beside it."""
    first, *others = stages
    threads = [threading.Thread(target=other.run, kwargs={"echo": False}) for other in others]
    for thread in threads:
        thread.start()
    names = ", beside it ".join(stage.name for stage in stages)
    say(f"\n=== [{time.strftime('%H:%M:%S')} +{time.monotonic() - started:.0f}s] {names}")
    first.run(echo=True)
    for thread, other in zip(threads, others, strict=True):
        thread.join()
        say(f"\n=== {other.name}, which ran beside it")
        for line in other.lines[-200 if other.status else -5 :]:
            say(line)


def main(arguments: list[str]) -> int:
    """Run the stages; 1 if one failed."""
    started = time.monotonic()
    done: list[Stage] = []
    for stages in groups(arguments):
        run_group(stages, started)
        done += stages
        if any(stage.status and stage.must for stage in stages):
            break
    total = time.monotonic() - started
    times = {
        "total_s": round(total, 1),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "stages": [
            {
                "name": s.name,
                "s": round(s.seconds, 1),
                "cpu_s": round(s.cpu_seconds, 1),
                "status": s.status,
            }
            for s in done
        ],
    }
    BUILD.mkdir(exist_ok=True)
    (BUILD / "times.json").write_text(json.dumps(times, indent=1) + "\n")

    say("\n=== times")
    for stage in done:
        failed = f"  failed ({stage.status})" if stage.status else ""
        say(f"{stage.seconds:7.0f} s {stage.cpu_seconds:7.0f} CPU s  {stage.name}{failed}")
    say(f"{total:7.0f} s                 all of it (build/times.json)")
    for stage in done:
        if stage.status:
            say(f"\n=== failed: {stage.name}")
            for line in [line for line in stage.lines if TELLING.search(line)][-60:]:
                say(line)
    for stage in done:
        for line in [line for line in stage.lines if SUMMARY.search(line)][-1:]:
            say(line)
    return 1 if any(stage.status for stage in done) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
