"""The kernels of codecs against a copy, and selections against torch's, with goals."""

import json
import subprocess
from statistics import median
from typing import Any

import torch

from bench.gpu.kernels import timed
from bench.machine import ROOT

PROGRAM = ROOT / "build/gpu/tests/gpu/gpu_codes_bench"
ELEMENTS = 100_000_000
_TORCH = "torch: abs, topk, gather"


def measure() -> list[dict[str, Any]]:
    """Microseconds of each kernel by sample, and what became of its goal.

    Raises:
        RuntimeError: The program of the kernels is missing or fails.
    """
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM} is missing (expected as built by make gpu-check)")
    done = subprocess.run(
        [str(PROGRAM), str(ELEMENTS)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{PROGRAM.name} ended with {done.returncode}: {done.stderr}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return judge(rows + _torch(sorted({row["pairs"] for row in rows if "pairs" in row})))


def _torch(numbers: list[int]) -> list[dict[str, Any]]:
    """What torch offers to select so many elements."""
    values = torch.randn(ELEMENTS, device="cuda")
    rows = []
    for pairs in numbers:

        def run(pairs: int = pairs) -> torch.Tensor:
            indices = values.abs().topk(pairs, sorted=False).indices
            return values.gather(0, indices)

        payload = 4 * ELEMENTS
        row = {"work": _TORCH, "bytes_read": payload, "bytes_written": 0, "pairs": pairs}
        rows.append(row | {"us": timed(run)})
    return rows


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with goals: what is compared, the ratio, what it has to be and whether it is.

    The copies among the rows say what moving a byte costs; of several the fastest counts, which
    is the hardest. Reading everything once is taken for half of a copy.
    """
    copies = [row for row in rows if row["work"] == "copy"]
    per_byte = min(median(row["us"]) / _moved(row) for row in copies)
    torch_us = {row["pairs"]: median(row["us"]) for row in rows if row["work"] == _TORCH}
    judged = []
    for row in rows:
        us = median(row["us"])
        limit = per_byte * _moved(row)
        work = row["work"]
        goals: list[dict[str, Any]] = []
        if work.startswith(("encode", "decode")):
            goals = [_at_least("bandwidth of a copy", limit / us, 0.85)]
        elif work.startswith("select, tracked") and work.endswith("none"):
            goals = [_at_most("one read", us / limit, 1.3)]
            goals += [_at_least(_TORCH, torch_us[row["pairs"]] / us, 15.0)]
        elif work.startswith("select, tracked"):  # feedback that moves, or in place
            goals = [_at_most("reading and writing all once", us / limit, 1.25)]
        elif work.startswith("select, cold"):
            goals = [_at_most("one read", us / limit, 2.5)]
        judged.append(row | {"goals": goals})
    return judged


def _moved(row: dict[str, Any]) -> int:
    return int(row["bytes_read"]) + int(row["bytes_written"])


def _at_least(against: str, ratio: float, goal: float) -> dict[str, Any]:
    return {"against": against, "ratio": ratio, "at_least": goal, "met": ratio >= goal}


def _at_most(against: str, ratio: float, goal: float) -> dict[str, Any]:
    return {"against": against, "ratio": ratio, "at_most": goal, "met": ratio <= goal}
