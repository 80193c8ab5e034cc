"""Row network.units: which size of units suits which delay, for all gradients of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import prod
from typing import Any

import numpy as np

from bench import tables as markdown
from bench.bed.bed import bed_for
from bench.bed.plan import Spec
from bench.job import run_on
from bench.network.workloads import workload
from bench.record import Run
from bench.turns import Contender, gathered, take_turns

#: Mbit/s of a host, milliseconds that a packet takes longer, and probability that it is lost.
CELLS = (
    *(f"1000:{delay_ms}:0" for delay_ms in (0, 1, 2, 3, 5, 10, 20)),
    *(f"300:{delay_ms}:0" for delay_ms in (0, 3, 10)),
    *(f"1000:{delay_ms}:1e-4" for delay_ms in (3, 10)),
)
_MIB = (1, 2, 4, 8, 16)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """One job between four hosts with a rank each, in which all sizes take turns."""
    mbit, delay_ms, loss = map(float, cell.split(":"))
    spec = Spec("units", flow_mbit=0, nic_mbit=mbit, delay_ms=delay_ms, loss=loss)
    with bed_for(spec) as bed:
        task = {"rounds": rounds or 5}
        ranks = run_on(bed, "bench.network.units:run", task, timeout_s=900.0)
    title = f"{mbit:g} Mbit/s, {delay_ms:g} ms" + (f", {loss:g} lost" if loss else "")
    found = gathered([[rank["spans"] for rank in ranks]])
    chosen = ranks[0]["chosen_bytes"]
    return {"title": title, "unit": "s", **found, "chosen_bytes": chosen, "bed": asdict(spec)}


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a rank: all sizes in turn; spans by size, and the size that the library chose."""
    import aiacc.array as hvd
    from aiacc import _core

    def reduce_all() -> None:
        named = enumerate(arrays)
        handles = [hvd.allreduce_async_(array, name=str(index)) for index, array in named]
        for handle in handles:
            hvd.synchronize(handle)

    def propose(mib: int) -> None:
        """Rank 0's proposal takes effect with a round, which brings it to all ranks."""
        if hvd.rank() == 0:
            _core.propose_parameters(mib << 20, _core.lanes())
        hvd.barrier()

    hvd.init()
    arrays = [np.ones(prod(shape[-1]), np.float32) for shape in workload("resnet50").shapes]
    hvd.barrier()
    chosen = int(_core.stats()["unit_bytes"])
    sizes = [Contender(str(mib), reduce_all, partial(propose, mib)) for mib in _MIB]
    spans = take_turns(sizes, task["rounds"], hvd.barrier, warm_up=1)
    hvd.shutdown()
    return {"spans": spans, "chosen_bytes": chosen}


def tables(runs: Sequence[Run]) -> str:
    """A line for each network."""
    lines = [
        [run["title"], *(markdown.spread(run, str(mib)) for mib in _MIB),
         f"{run['chosen_bytes'] >> 20} MiB"]
        for run in runs
    ]  # fmt: skip
    return markdown.table(["network", *(f"{mib} MiB" for mib in _MIB), "chosen"], lines)
