"""``python -m bench.selection``: choosing 1 % of a fused buffer, against ``torch.topk``.

Ours is the C++ program ``select_bench``, on one thread; torch's are ``torch.topk(x.abs(), k)``, and
what error feedback needs beside it, with the threads that are asked for. Writes one result file.
``--write`` measures nothing, and puts the table of the result file into docs/compression.md.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench import machine
from bench.report import publish

PAGE = machine.ROOT / "docs" / "compression.md"
MARK = "bench:selection"
RESULT = machine.ROOT / "bench" / "results" / "selection.json"
BINARY = machine.ROOT / "build" / "dev" / "bench" / "micro" / "select_bench"
COUNT = 25_000_000
DENSITY = 0.01
STEPS = 60
_TIMEOUT_S = 600


def torch_times(threads: int, count: int, k: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of torch's selection of ``k`` of ``count`` float32 elements on ``threads``."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    gradient = torch.randn(count)
    residual = torch.zeros(count)

    def select(values: torch.Tensor, *, ordered: bool) -> torch.Tensor:
        indices = torch.topk(values.abs(), k, sorted=ordered).indices
        return values[indices]

    def feed_back() -> None:
        residual.add_(gradient)
        indices = torch.topk(residual.abs(), k, sorted=False).indices
        residual[indices] = 0.0

    return {
        "threads": threads,
        "topk_ms": _timed(lambda: select(gradient, ordered=True), repeats),
        "topk_unsorted_ms": _timed(lambda: select(gradient, ordered=False), repeats),
        "feedback_ms": _timed(feed_back, repeats),
    }


def ours(binary: Path, count: int) -> dict[str, Any]:
    """What ``select_bench`` prints. Blocks for about half a minute.

    Raises:
        subprocess.CalledProcessError: The program found a wrong result.
    """
    command = [str(binary), str(count), str(DENSITY), str(STEPS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return dict(json.loads(done.stdout))


def table(report: dict[str, Any]) -> str:
    """Markdown: milliseconds of each selection, alone and with error feedback. Pure."""
    mine = {(row["mode"], row["residual"]): row["median_ms"] for row in report["ours"]["rows"]}
    rows = [
        (f"`mstopk:mode={mode}`", 1, mine[mode, False], mine[mode, True])
        for mode in dict.fromkeys(mode for mode, _ in mine)
    ]
    for times in report["torch"]:
        fed_back = times["feedback_ms"]["median"]
        for name, what in (("topk_ms", "sorted"), ("topk_unsorted_ms", "unsorted")):
            alone = times[name]["median"]
            title = f"`torch.topk(x.abs(), k)`, {what}"
            rows.append((title, times["threads"], alone, fed_back if what == "unsorted" else None))
    lines = ["| selection | threads | ms | ms with residuals |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {title} | {threads} | {alone:.1f} | {'' if fed_back is None else f'{fed_back:.1f}'} |"
        for title, threads, alone, fed_back in rows
    ]
    theirs = [row for row in rows if row[0].startswith("`torch")]
    alone = min(row[2] for row in theirs) / mine["tracked", False]
    fed_back = min(row[3] for row in theirs if row[3] is not None) / mine["tracked", True]
    count, k, versions = report["ours"]["count"], report["ours"]["k"], report["versions"]
    described, commit = report["machine"], report["commit"][:12]
    return "\n".join(
        [
            *lines,
            "",
            f"{k:,} of {count:,} float32. `tracked` is {alone:.0f} times as fast as the fastest of "
            f"torch's, {fed_back:.0f} times with residuals; a copy of the elements takes "
            f"{report['ours']['memcpy_ms']:.1f} ms.",
            f"Measured {report['when']} at commit {commit} on {described['cpu']}, "
            f"{described['cores']} cores, Linux {described['kernel']}, torch {versions['torch']}; "
            f"load average {report['load_before'][0]} before, {report['load_after'][0]} after: "
            f"medians of {report['ours']['steps']} selections, and of "
            f"{len(report['torch'][0]['topk_ms']['samples'])} of torch's.",
        ]
    )


def _timed(call: Callable[[], object], repeats: int) -> dict[str, Any]:
    call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(round((time.perf_counter() - start) * 1e3, 3))
    return {"median": median(samples), "samples": samples}


def main() -> int:
    """Measure both, write the result file, print the medians."""
    parser = argparse.ArgumentParser(prog="python -m bench.selection", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file to write (%(default)s)")
    parser.add_argument("--binary", type=Path, default=BINARY, help="select_bench (%(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="elements (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="of torch's (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the page, measure nothing")
    options = parser.parse_args()
    if options.write:
        publish(
            table(json.loads(options.json.read_text())), PAGE, MARK, options.json, None, write=True
        )
        return 0
    if not options.binary.exists():
        print(
            f"{options.binary} does not exist; cmake --build --preset dev --target select_bench",
            file=sys.stderr,
        )
        return 2
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    load_before = machine.load()
    selection = ours(options.binary, options.count)
    report: dict[str, Any] = {
        "when": began,
        "machine": machine.describe(),
        "versions": machine.versions(),
        **machine.commit(),
        "load_before": load_before,
        "ours": selection,
        "torch": [
            torch_times(threads, options.count, selection["k"], options.repeats)
            for threads in (1, 2)
        ],
        "load_after": machine.load(),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for row in selection["rows"]:
        feedback = " with error feedback" if row["residual"] else ""
        print(f"{row['mode']}{feedback}: {row['median_ms']:.1f} ms, {row['gb_s']:.1f} GB/s")
    print(f"memcpy: {selection['memcpy_ms']:.1f} ms")
    for times in report["torch"]:
        for name in ("topk_ms", "topk_unsorted_ms", "feedback_ms"):
            print(f"torch, {times['threads']} threads, {name}: {times[name]['median']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
