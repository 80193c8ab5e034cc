"""The all-reduce of ResNet-50's 161 gradients by two ranks on one GPU, by settings.

* ``lanes``: 1 to 8, over NCCL's sockets and staged;
* ``units_nccl``: the size of a unit, over NCCL's sockets, by lanes;
* ``units_staged``: units straight through the ranks' slots, and through buffers, as inputs that are
  looked at go: with one more pass of reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import aiacc.torch as hvd
from bench.collectives.tensors import Tensors
from bench.collectives.work import one_by_one
from bench.gpu import ranks
from bench.record import Run
from bench.shapes import resnet50
from bench.tables import matrix
from bench.turns import Spans, by_name

_LANES = ("1", "2", "3", "4", "6", "8")
#: Of each cell the values of variables; a contender has one of each, and a job of its own.
_GRIDS: dict[str, dict[str, tuple[str, ...]]] = {
    "lanes_nccl": {"AIACC_GPU_ENGINE": ("nccl",), "AIACC_GPU_LANES": _LANES},
    "lanes_staged": {"AIACC_GPU_ENGINE": ("staged",), "AIACC_LANES": _LANES},
    "units_nccl": {
        "AIACC_GPU_ENGINE": ("nccl",),
        "AIACC_GPU_LANES": ("1", "2"),
        "AIACC_GPU_UNIT_BYTES": ("8MiB", "32MiB"),
    },
    "units_staged": {
        "AIACC_GPU_ENGINE": ("staged",),
        "AIACC_CHECK_FINITE": ("off", "warn"),
        "AIACC_UNIT_BYTES": ("256KiB", "1MiB", "4MiB"),
    },
}
CELLS = tuple(_GRIDS)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of the sum; jobs of settings take turns."""
    grid = _GRIDS[cell]
    settings = {
        ", ".join(values): dict(zip(grid, values, strict=True))
        for values in product(*grid.values())
    }

    def one(name: str) -> list[float]:
        found = ranks.run("bench.gpu.allreduce:plain", 2, rounds, settings[name])
        return list(found["sum"][0])

    return ranks.kept(cell.replace("_", ", "), by_name(settings, 2, one))


def plain(task: dict[str, Any]) -> dict[str, Spans]:
    """One rank: gradients one by one."""
    ranks.begin()
    data = Tensors(resnet50()[::-1], hvd.rank(), hvd.size(), device="cuda")
    found = ranks.in_turn([one_by_one(hvd, data, "sum")], task["rounds"])
    hvd.shutdown()
    return found


def tables(runs: Sequence[Run]) -> str:
    """A table for each cell, of one line."""
    return "\n\n".join(matrix([run], {name: name for name in run["samples"]}, ()) for run in runs)
