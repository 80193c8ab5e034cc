"""Row network.idle: what connections lose that start slowly again after a pause.

Linux lets a connection that was idle for a fifth of a second find its window anew
(net.ipv4.tcp_slow_start_after_idle = 1), which takes several round trips. In a training step it is
idle while the forward pass computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from bench import tables as markdown
from bench.bed.bed import bed_for
from bench.bed.plan import Spec
from bench.network.allreduce import CONGESTION
from bench.network.cells import ROUNDS, Contender, ddp, trained
from bench.network.workloads import workload
from bench.record import Run
from bench.turns import by_name

#: Milliseconds that a packet takes longer.
CELLS = ("3", "10", "20")
_WAYS = {
    "aiacc": Contender("aiacc", "aiacc", {"AIACC_ENGINE": "tcp", "AIACC_LANES": "4"}),
    "ddp": ddp(25),
    "ddp4": ddp(25, 4),
}
#: The way, and the setting of all hosts.
TITLES = {
    f"{name}:{setting}": f"{way.title}, {setting}{' (default)' * setting}"
    for name, way in _WAYS.items()
    for setting in (1, 0)
}
OURS = tuple(key for key in TITLES if key.startswith("aiacc"))
PEERS = tuple(key for key in TITLES if key not in OURS)
#: Computation of a step: 1.5 times what all gradients take on the wire.
_COMPUTE_S = 1.924


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Both settings in turn, each on a bed of its own."""
    spec = Spec("idle0", 4, flow_mbit=0, congestion=CONGESTION, delay_ms=float(cell))
    with ExitStack() as stack:
        beds = {
            on: stack.enter_context(
                bed_for(replace(spec, name=f"idle{on}", slow_start_after_idle=on == "1"))
            )
            for on in ("0", "1")
        }
        work = workload("resnet50").lasting(_COMPUTE_S)
        found = by_name(beds, rounds or ROUNDS, lambda on: trained(beds[on], work, _WAYS, 1))
    return {
        "title": f"{spec.nic_mbit:g} Mbit/s, {spec.delay_ms:g} ms",
        "unit": "s",
        "samples": {
            f"{way}:{on}": [one["samples"][way][0] for one in jobs]
            for on, jobs in found.items()
            for way in _WAYS
        },
        "compute_s": _COMPUTE_S,
        "bed": asdict(spec),
    }


def tables(runs: Sequence[Run]) -> str:
    """A line for each network."""
    return markdown.matrix(runs, TITLES, ())
