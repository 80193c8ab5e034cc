"""The kernels that pack and unpack, against the driver's copies and torch's foreach operations."""

import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench import shapes
from bench.machine import ROOT

PROGRAM = ROOT / "build/gpu/tests/gpu/gpu_kernels_bench"
_SAMPLES, _CALLS, _WARM_UP = 20, 20, 3
_COPIED = 100_000_000

#: Elements of the float32 tensors of each set.
SETS = {
    "161 gradients of ResNet-50": [math.prod(shape) for _, shape in shapes.resnet50()],
    "64 tensors of 16 MiB": [4 << 20] * 64,
}


def measure() -> list[dict[str, Any]]:
    """Microseconds of each way to pack each set, by sample.

    Raises:
        RuntimeError: The program of the kernels is missing or fails.
    """
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM} is missing (expected as built by make gpu-check)")
    rows = []
    for name, counts in SETS.items():
        for row in [*_kernels(counts), *_foreach(counts)]:
            rows.append({"set": name, "tensors": len(counts), **row})
    return rows


def _kernels(counts: list[int]) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(map(str, counts)))
        file.flush()
        done = subprocess.run(
            [str(PROGRAM), file.name], capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(PROGRAM).name} ended with {done.returncode}: {done.stderr}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def _foreach(counts: list[int]) -> list[dict[str, Any]]:
    """What torch offers to the same end."""
    tensors = [torch.zeros(count, device="cuda") for count in counts]
    payload = 4 * sum(counts)
    flat = torch.zeros(sum(counts), device="cuda")
    half = torch.zeros(sum(counts), device="cuda", dtype=torch.float16)
    views, half_views = list(flat.split(counts)), list(half.split(counts))

    def scaled() -> None:
        torch._foreach_copy_(views, tensors)
        torch._foreach_mul_(views, 0.125)

    ways: list[tuple[str, int, Callable[[], Any]]] = [
        ("torch: cat", payload, lambda: torch.cat(tensors, out=flat)),
        ("torch: foreach copy", payload, lambda: torch._foreach_copy_(views, tensors)),
        ("torch: foreach copy and scale", payload, scaled),
        ("torch: foreach copy as float16", payload // 2,
         lambda: torch._foreach_copy_(half_views, tensors)),
    ]  # fmt: skip
    return [
        {"work": work, "bytes_read": payload, "bytes_written": written, "us": timed(run)}
        for work, written, run in ways
    ]


def timed(run: Callable[[], Any]) -> list[float]:
    """Microseconds of one call on the current stream, by sample."""
    samples = []
    for sample in range(_WARM_UP + _SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_CALLS):
            run()
        end.record()
        end.synchronize()
        if sample >= _WARM_UP:
            samples.append(1000 * begin.elapsed_time(end) / _CALLS)
    return samples


def captured(run: Callable[[], Any]) -> Any:
    """What ``run`` queues, as a CUDA graph: its replay is the GPU alone, without Python."""
    graph: Any = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return graph


def copy() -> dict[str, Any]:
    """The row that others are compared with."""
    source, target = (torch.zeros(_COPIED, device="cuda") for _ in range(2))
    payload = 4 * _COPIED
    return {
        "set": f"one tensor of {_COPIED:,} elements",
        "bytes_read": payload,
        "bytes_written": payload,
        "work": "copy",
        "us": timed(lambda: target.copy_(source)),
    }


def us_per_byte(rows: list[dict[str, Any]]) -> float:
    """What a byte costs in the copy among the rows."""
    (found,) = [row for row in rows if row["work"] == "copy"]
    return median(found["us"]) / moved(found)


def moved(row: dict[str, Any]) -> int:
    """Bytes that are read and written."""
    return int(row["bytes_read"]) + int(row["bytes_written"])
