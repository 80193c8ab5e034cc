"""``python -m bench.negotiation``: what agreeing on the tensors of a step costs, counted not timed.

The tensors are the 161 gradients of ResNet-50, fp32, the last layer's first. Two sources:

* jobs of 2 to 8 ranks on this machine: `aiacc.stats()` of every rank after every step;
* the C++ program ``negotiation_bench``, which runs the negotiators of up to 1024 ranks in one
  process and counts the messages of recursive doubling with the frames that they travel in.

They are compared with a *gather of names*: in each round every rank sends a request for each of
its tensors to rank 0, which sends the names of those that are ready to every rank. That is a model;
with N ranks, R rounds per step, a frame of f bytes, requests of q_t bytes (as this core encodes
them) and names of n_t bytes, each with a length of 4 bytes, a step has

    messages = 2 (N - 1) R
    bytes    = (N - 1) (2 R f + sum_t q_t + sum_t (4 + n_t))

and all of them pass rank 0.

A third program, ``large_job_bench``, runs one rank of a large job: 1,024 ranks, 6,200 tensors. Here
time and memory are measured, too. ``--earlier`` runs that of another commit as well; of one before
requests were merged it is built with ``-DAIACC_REPORTS``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import ROOT, commit, describe, versions
from bench.report import between_markers
from bench.shapes import resnet50

RESULT = ROOT / "bench" / "results" / "negotiation.json"
PAGE = ROOT / "docs" / "network.md"
MARK = "bench:negotiation"
BINARY = ROOT / "build" / "dev" / "bench" / "micro" / "negotiation_bench"
LARGE_BINARY = BINARY.with_name("large_job_bench")
LARGE_RANKS = 1024
#: GPUs per host (0: host memory) and AIACC_CACHE_CAPACITY.
LARGE_JOBS = ((0, 4096), (0, 8192), (8, 8192))
LARGE_STEPS = 4
MEASURED = (2, 3, 4, 5, 6, 7, 8)
SIMULATED = (2, 4, 8, 64, 256, 1024)
UNIT_BYTES = 1 << 20
STEPS = 12
_TIMEOUT_S = 600


def tensors() -> list[tuple[str, tuple[int, ...]]]:
    """Names as `DistributedOptimizer` makes them, and shapes, in the order of the backward pass."""
    return [(f"allreduce.{name}", shape) for name, shape in reversed(resnet50())]


def large_model() -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of 6,200 tensors, in the order of the backward pass."""
    return [
        (
            f"allreduce.model.layers.{i // 62}.block{i % 62 // 8}.mlp.linear{i % 8}.weight",
            (1024,) * 2,
        )
        for i in reversed(range(6200))
    ]


def _lines(model: list[tuple[str, tuple[int, ...]]]) -> str:
    return "".join(" ".join([name, *map(str, shape)]) + "\n" for name, shape in model)


def large(binary: Path, commit_of_binary: str) -> list[dict[str, Any]]:
    """What a rank of a large job does in its first steps. Blocks, perhaps for minutes."""
    rows = []
    for gpus, capacity in LARGE_JOBS:
        done = subprocess.run(
            [str(binary), *map(str, (LARGE_RANKS, gpus, capacity, LARGE_STEPS))],
            input=_lines(large_model()),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        job = {"gpus_per_host": gpus, "cache_capacity": capacity, "steps": json.loads(done.stdout)}
        rows.append({"commit": commit_of_binary, **job})
    return rows


def gather_of_names(
    ranks: int, rounds: int, frame_bytes: int, request_bytes: int
) -> dict[str, int]:
    """Messages and bytes of a step by the formula above; `request_bytes` is a sum over tensors."""
    names = sum(4 + len(name) for name, _ in tensors())
    total = (ranks - 1) * (2 * rounds * frame_bytes + request_bytes + names)
    return {
        "messages": 2 * (ranks - 1) * rounds,
        "bytes": total,
        "busiest_rank_bytes": total,
    }


def simulate(binary: Path) -> list[dict[str, Any]]:
    """What ``negotiation_bench`` counts, and the model beside it. Blocks for a minute or more."""
    done = subprocess.run(
        [binary, str(UNIT_BYTES), *map(str, SIMULATED)],
        input=_lines(tensors()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    for row in rows:
        row["gather_of_names"] = gather_of_names(
            row["ranks"], row["rounds"], row["frame_bytes"], row["request_bytes"]
        )
    return rows


def measure(ranks: int) -> dict[str, Any]:
    """Rounds and control bytes of every step and rank of a job of `ranks` processes. Blocks."""
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        command = [Path(sys.executable).with_name("aiaccrun"), "-np", str(ranks), sys.executable]
        subprocess.run(
            [*command, "-m", "bench.negotiation", "--rank-of-job", folder],
            cwd=ROOT,
            env={**os.environ, "AIACC_ENGINE": "tcp", "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=_TIMEOUT_S,
        )
        seen = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {"ranks": ranks, "rounds": seen[0]["rounds"], "bytes": [one["bytes"] for one in seen]}


def be_a_rank(folder: Path) -> None:
    """Reduce the gradients STEPS times; write what each step added to the counters."""
    import numpy as np

    import aiacc
    import aiacc.array as hvd

    hvd.init()
    gradients = [(name, np.ones(shape, np.float32)) for name, shape in tensors()]
    rounds, sent = [], []
    before = aiacc.stats()
    for _ in range(STEPS):
        handles = [hvd.allreduce_async_(array, name=name) for name, array in gradients]
        for handle in handles:
            hvd.synchronize(handle)
        after = aiacc.stats()
        rounds.append(after["rounds"] - before["rounds"])
        sent.append(after["control_bytes"] - before["control_bytes"])
        before = after
    (folder / f"{hvd.rank()}.json").write_text(json.dumps({"rounds": rounds, "bytes": sent}))
    hvd.barrier()
    hvd.shutdown()


def table(report: dict[str, Any]) -> str:
    """Markdown for docs/network.md."""
    lines = [
        "| ranks | rounds per step | bytes that a rank sends per step, median (most) | per round |",
        "| --- | --- | --- | --- |",
    ]
    for job in report["measured"]:
        # The first step is the one in which the names travel.
        later = [value for rank in job["bytes"] for value in rank[1:]]
        rounds = job["rounds"][1:]
        per_round = sum(map(sum, (rank[1:] for rank in job["bytes"]))) / (
            len(job["bytes"]) * sum(rounds)
        )
        lines.append(
            f"| {job['ranks']} | {median(rounds):g} ({min(rounds)} to {max(rounds)}) "
            f"| {median(later):,.0f} ({max(later):,}) | {per_round:.0f} |"
        )
    lines += [
        "",
        "| ranks | rounds per step | bit vector: messages | bytes | busiest rank "
        "| names, nothing cached: messages | bytes | busiest rank |",
        "| --- " * 8 + "|",
    ]
    for row in report["simulated"]:
        ours, names = row["step"], row["gather_of_names"]
        lines.append(
            f"| {row['ranks']} | {row['rounds']} | {ours['messages']:,} | {_size(ours['bytes'])} "
            f"| {_size(ours['busiest_rank_bytes'])} | {names['messages']:,} "
            f"| {_size(names['bytes'])} | {_size(names['busiest_rank_bytes'])} |"
        )
    last = report["simulated"][-1]
    lines += [
        "",
        f"The first step of a job, in which the names travel once, passes "
        f"{_size(last['first_step']['busiest_rank_bytes'])} through the busiest of "
        f"{last['ranks']} ranks.",
        "",
        f"One rank of {report['large']['ranks']:,}, {report['large']['tensors']:,} tensors, "
        "all of them in one round per step:",
        "",
        "| commit | memory | AIACC_CACHE_CAPACITY | step | bytes sent and received "
        "| largest message | peak of memory | time |",
        "| --- " * 8 + "|",
    ]
    for job in [*report["large"]["earlier"], *report["large"]["jobs"]]:
        memory = f"{job['gpus_per_host']} GPUs per host" if job["gpus_per_host"] else "host"
        for step in (0, 1, len(job["steps"]) - 1):
            cost = job["steps"][step]
            time_s = cost["contribute_s"] + cost["combine_s"] + cost["apply_s"]
            lines.append(
                f"| {job['commit'][:12]} | {memory} | {job['cache_capacity']} | {step + 1} "
                f"| {_size(cost['busiest_rank_bytes'])} | {_size(cost['largest_message_bytes'])} "
                f"| {_size(cost['peak_heap_bytes'])} | {1000 * time_s:,.1f} ms |"
            )
    lines += [
        "",
        f"Counted {report['when']} at commit {report['commit'][:12]}; every count is in "
        f"`{RESULT.relative_to(ROOT)}`.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Count, write the result file and the table of docs/network.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.negotiation", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file to write (%(default)s)")
    parser.add_argument("--binary", type=Path, default=BINARY, help="negotiation_bench")
    parser.add_argument("--large-binary", type=Path, default=LARGE_BINARY, help="large_job_bench")
    parser.add_argument(
        "--earlier",
        nargs=2,
        action="append",
        default=[],
        metavar=("BINARY", "COMMIT"),
        help="large_job_bench of another commit, to compare with; without it what the file has of "
        "one stays",
    )
    parser.add_argument("--rank-of-job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of_job is not None:
        be_a_rank(options.rank_of_job)
        return 0
    for binary in (options.binary, options.large_binary):
        if not binary.exists():
            print(
                f"{binary} does not exist; cmake --build --preset dev --target {binary.name}",
                file=sys.stderr,
            )
            return 2
    earlier = [job for path, name in options.earlier for job in large(Path(path), name)]
    if not earlier and options.json.exists():
        earlier = json.loads(options.json.read_text())["large"]["earlier"]
    jobs = large(options.large_binary, str(commit()["commit"]))
    report = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "machine": describe(),
        "versions": versions(),
        **commit(),
        "unit_bytes": UNIT_BYTES,
        "tensors": len(tensors()),
        "measured": [measure(ranks) for ranks in MEASURED],
        "simulated": simulate(options.binary),
        "large": {
            "ranks": LARGE_RANKS,
            "tensors": len(large_model()),
            "earlier": earlier,
            "jobs": jobs,
        },
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    text = PAGE.read_text()
    PAGE.write_text(between_markers(text, table(report), str(PAGE), MARK))
    return 0


def _size(value: int) -> str:
    """Bytes with three significant digits."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value} B"


if __name__ == "__main__":
    sys.exit(main())
