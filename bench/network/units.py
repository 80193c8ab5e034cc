"""Row network.units: which size of units suits which delay, for all gradients of a model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np

from bench import tables as markdown
from bench.bed.bed import bed_for
from bench.bed.plan import Spec
from bench.job import run_on
from bench.network.workloads import workload
from bench.record import Run

#: Mbit/s of a host, milliseconds that a packet takes longer, and probability that it is lost.
CELLS = (
    *(f"1000:{delay_ms}:0" for delay_ms in (0, 1, 2, 3, 5, 10, 20)),
    *(f"300:{delay_ms}:0" for delay_ms in (0, 3, 10)),
    *(f"1000:{delay_ms}:1e-4" for delay_ms in (3, 10)),
)
_MIB = (1, 2, 4, 8, 16)
_ROUNDS = 5
_TIMEOUT_S = 900.0


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """One job between four hosts with a rank each, in which all sizes take turns."""
    mbit, delay_ms, loss = map(float, cell.split(":"))
    spec = Spec("units", flow_mbit=0, nic_mbit=mbit, delay_ms=delay_ms, loss=loss)
    with bed_for(spec) as bed:
        task = {"rounds": rounds or _ROUNDS}
        found = run_on(bed, "bench.network.units:run", task, timeout_s=_TIMEOUT_S)[0]
    title = f"{mbit:g} Mbit/s, {delay_ms:g} ms" + (f", {loss:g} lost" if loss else "")
    return {"title": title, "unit": "s", **found, "bed": asdict(spec)}


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a rank: all sizes in turn; seconds by size, and that which the library chose."""
    import aiacc.array as hvd
    from aiacc import _core

    def settle() -> None:
        """Let what was proposed take effect: a round brings it to all ranks."""
        hvd.barrier()
        hvd.barrier()

    hvd.init()
    arrays = [np.ones(prod(shape[-1]), np.float32) for shape in workload("resnet50").shapes]
    seconds: dict[int, list[float]] = {mib: [] for mib in _MIB}
    settle()
    chosen = int(_core.stats()["unit_bytes"])
    for number in range(task["rounds"] + 1):  # the first one warms up
        for mib in _MIB[:: 1 if number % 2 == 0 else -1]:
            if hvd.rank() == 0:
                _core.propose_parameters(mib << 20, _core.lanes())
            settle()
            began = time.perf_counter()
            handles = [
                hvd.allreduce_async_(array, name=str(index)) for index, array in enumerate(arrays)
            ]
            for handle in handles:
                hvd.synchronize(handle)
            if number > 0:
                seconds[mib].append(time.perf_counter() - began)
    hvd.shutdown()
    samples = {str(mib): [values] for mib, values in seconds.items()}
    return {"samples": samples, "chosen_bytes": chosen}


def tables(runs: Sequence[Run]) -> str:
    """A line for each network."""
    lines = [
        [run["title"], *(markdown.spread(run, str(mib)) for mib in _MIB),
         f"{run['chosen_bytes'] >> 20} MiB"]
        for run in runs
    ]  # fmt: skip
    return markdown.table(["network", *(f"{mib} MiB" for mib in _MIB), "chosen"], lines)
