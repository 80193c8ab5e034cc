"""Works on a GPU in turn, each beside what moving its bytes costs in a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from aiacc import _core
from bench import machine
from bench.machine import ROOT
from bench.native import arguments, built
from bench.record import Run, samples
from bench.tables import fastest, ratio, table
from bench.turns import in_turn

_ROUNDS, _WARM_UP, _CALLS = 20, 3, 20
COPY = "copy"


@dataclass(frozen=True)
class Work:
    """One way to do something on the GPU.

    Attributes:
        name: Its key in the samples.
        run: Queues it on the current stream.
        moved: Bytes that have to be read and written; 0 if that says nothing.
        over: Peers, with the fastest of which it is compared.
    """

    name: str
    run: Callable[[], object]
    moved: int = 0
    over: tuple[str, ...] = ()


def measured(title: str, works: Sequence[Work], rounds: int | None) -> dict[str, Any]:
    """Seconds of a call of each work, of many in a row, in turn."""
    found: dict[str, list[float]] = {work.name: [] for work in works}
    for number in range(-_WARM_UP, rounds or _ROUNDS):
        for work in in_turn(works, number):
            took = _timed(work.run)
            if number >= 0:
                found[work.name].append(took)
    return {
        "title": title,
        "unit": "s",
        "samples": {name: [values] for name, values in found.items()},
        "moved": {work.name: work.moved for work in works},
        "over": {work.name: work.over for work in works if work.over},
        "machine": here(),
    }


def _timed(run: Callable[[], object]) -> float:
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(_CALLS):
        run()
    end.record()
    end.synchronize()
    return round(float(begin.elapsed_time(end)) / 1e3 / _CALLS, 9)


def graph(run: Callable[[], object]) -> Callable[[], object]:
    """What ``run`` queues, as a CUDA graph: the GPU alone, without Python."""
    run()
    torch.cuda.synchronize()
    captured: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run()
    return lambda: captured.replay()


def copy(elements: int = 100_000_000) -> Work:
    """The work that all others are compared with."""
    source, target = (torch.zeros(elements, device="cuda") for _ in range(2))
    return Work(COPY, lambda: target.copy_(source), 8 * elements)


def library() -> ctypes.CDLL:
    """The kernels of the core: bench/gpu/gpu_bench.cc."""
    path = built(ROOT / "build/gpu/tests/gpu/libgpu_bench.so", "make gpu-check builds")
    return ctypes.CDLL(str(path))


def call(function: Any, *values: Any) -> None:
    """Call a function of the library on torch's stream; RuntimeError if it fails."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if function(stream, *arguments(*values)) != 0:
        raise RuntimeError("a kernel failed; stderr says why")


def here() -> dict[str, Any]:
    """This machine and its GPU."""
    cuda: Any = torch.cuda
    found = cuda.get_device_properties(0)
    engines = {name: detail for name, _, detail in _core.engines()}
    gpu = {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "driver": machine.field("/proc/driver/nvidia/version", "NVRM version") or "unknown",
        "cuda_of_torch": torch.version.cuda,
        "nccl_of_torch": ".".join(map(str, cuda.nccl.version())),
        "nccl_of_aiacc": engines["nccl"],
        "kernels": _core.build_info()["cuda"],
    }
    return {**machine.describe(), "gpu": gpu}


def tables(runs: Sequence[Run]) -> str:
    """A line for each work: its time, and its bandwidth beside that of a copy."""
    lines = []
    for run in runs:
        for name in run["samples"]:
            middle, moved = median(samples(run, name)), run["moved"][name]
            copied = run["moved"][COPY] / median(samples(run, COPY))
            peer = fastest(run, run["over"].get(name, ()))
            lines.append(
                [
                    run["title"],
                    name,
                    f"{middle * 1e6:,.0f} µs",
                    f"{moved / middle / copied:.0%}" if moved and name != COPY else "",
                    f"{ratio(run, name, peer):.2f}x {peer}" if peer else "",
                ]
            )
    return table(["on", "work", "time", "of a copy's bandwidth", "over"], lines)
