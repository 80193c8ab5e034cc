"""``python -m bench.gpu``: kernels, codecs, optimizers, factors, steps and all-reduces on one GPU.

Writes one file for each into bench/results/gpu. `make gpu-check` builds what this needs.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.gpu import codes, device, factors, jobs, kernels, optim
from bench.network import runs

FOLDER = machine.ROOT / "bench" / "results" / "gpu"
LANES = (1, 2, 3, 4, 6, 8)
UNITS = ("256KiB", "1MiB", "4MiB")


def main() -> int:
    """Measure, write the files, print the medians."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="(%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="(%(default)s)")
    options = parser.parse_args()
    reason = device.missing()
    if reason:
        print(f"bench.gpu: {reason}; nothing was measured", file=sys.stderr)
        return 2
    head = runs.begun() | {"gpu": device.describe()}
    for part in options.parts.split(","):
        rows = PARTS[part]()
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / f"{part}.json"
        command = runs.command("bench.gpu", sys.argv[1:])
        path.write_text(json.dumps({**head, "command": command, "rows": rows}, indent=1) + "\n")
        print("\n".join(summary(part, rows)))
    return 0


def _steps() -> list[dict[str, Any]]:
    rows = []
    for size in (1, 2):
        for name, samples in _slowest(jobs.run(size, ["--work", "step"], {})).items():
            rows.append({"ranks": size, "contender": name, "ms": samples})
    return rows


def _lanes() -> list[dict[str, Any]]:
    rows = []
    for engine in ("nccl", "staged"):
        for lanes in LANES:
            variables = {
                "AIACC_GPU_ENGINE": engine,
                "AIACC_LANES": str(lanes),
                "AIACC_GPU_LANES": str(lanes),
            }
            found = _slowest(jobs.run(2, ["--work", "gradients"], variables))
            rows.append({"engine": engine, "lanes": lanes, "ms": found["all-reduce"]})
    return rows


def _staged() -> list[dict[str, Any]]:
    """Large units through the ranks' slots, and through buffers.

    Those whose inputs are looked at take buffers: the time has one more pass of reading in it.
    """
    rows = []
    for way, check in (("slots", "off"), ("buffers, inputs looked at", "warn")):
        for unit in UNITS:
            variables = {
                "AIACC_GPU_ENGINE": "staged",
                "AIACC_CHECK_FINITE": check,
                "AIACC_UNIT_BYTES": unit,
            }
            found = _slowest(jobs.run(2, ["--work", "gradients"], variables))
            rows.append({"way": way, "unit": unit, "ms": found["all-reduce"]})
    return rows


def _coded() -> list[dict[str, Any]]:
    """Over `tcp` where they are staged: ranks that share memory code nothing."""
    rows = []
    for engine in ("nccl", "staged"):
        variables = {"AIACC_GPU_ENGINE": engine, "AIACC_ENGINE": "tcp"}
        found = _slowest(jobs.run(2, ["--work", "coded"], variables))
        rows += [
            {"engine": engine, "compression": name, "ms": samples}
            for name, samples in found.items()
        ]
    return rows


def _slowest(of_ranks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """A sample of all ranks lasts as long as that of the slowest."""
    return {
        name: [max(values) for values in zip(*(rank[name] for rank in of_ranks), strict=True)]
        for name in of_ranks[0]
    }


def summary(part: str, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each row: what, and its median."""
    lines = [f"{part}:"]
    for row in rows:
        unit = "us" if "us" in row else "ms"
        what = ", ".join(f"{key} {row[key]}" for key in row if key not in ("us", "ms", "goals"))
        middle = median(row[unit])
        rate = ""
        if part in ("kernels", "codes", "optim", "factors"):
            moved = row["bytes_read"] + row["bytes_written"]
            rate = f", {moved / middle / 1e3:.0f} GB/s read and written"
        lines.append(f"  {what}: {middle:.2f} {unit}{rate}")
        lines += [f"    {_verdict(goal)}" for goal in row.get("goals", ())]
    return lines


def _verdict(goal: dict[str, Any]) -> str:
    bound = "at least" if "at_least" in goal else "at most"
    wanted = goal["at_least"] if "at_least" in goal else goal["at_most"]
    met = "met" if goal["met"] else "MISSED"
    return f"{goal['ratio']:.2f} x {goal['against']} (goal: {bound} {wanted}): {met}"


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "kernels": kernels.measure,
    "codes": codes.measure,
    "optim": optim.measure,
    "factors": factors.measure,
    "step": _steps,
    "lanes": _lanes,
    "staged": _staged,
    "coded": _coded,
}


if __name__ == "__main__":
    sys.exit(main())
