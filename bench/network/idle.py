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
from bench.network.training import Way, ddp, job
from bench.record import Run
from bench.turns import by_name

#: Milliseconds that a packet takes longer.
CELLS = ("3", "10", "20")
_WAYS = {
    "aiacc": Way("aiacc", "aiacc", {"AIACC_ENGINE": "tcp", "AIACC_LANES": "4"}, warm_up=3),
    "ddp": replace(ddp(1, 25), warm_up=3),
}
#: The way, and the setting of all hosts.
_TITLES = {
    f"{name}:{setting}": f"{way.title}, {setting}{' (default)' * setting}"
    for name, way in _WAYS.items()
    for setting in (1, 0)
}
_STEPS, _ROUNDS = 5, 2
#: Computation of a step: 1.5 times what all gradients take on the wire.
_COMPUTE_S = 1.924


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Both settings in turn, each on a bed of its own."""
    spec = Spec("idle0", 4, flow_mbit=0, congestion=CONGESTION, delay_ms=float(cell))
    with ExitStack() as stack:
        beds = {
            str(int(on)): stack.enter_context(
                bed_for(replace(spec, name=f"idle{int(on)}", slow_start_after_idle=on))
            )
            for on in (False, True)
        }

        def run(key: str) -> Any:
            way, setting = key.split(":")
            return job(beds[setting], "resnet50", _WAYS[way], _STEPS, compute_s=_COMPUTE_S)

        found = by_name(_TITLES, rounds or _ROUNDS, run)
    return {
        "title": f"{spec.nic_mbit:g} Mbit/s, {spec.delay_ms:g} ms",
        "unit": "s",
        "samples": {key: [one["seconds"] for one in jobs] for key, jobs in found.items()},
        "compute_s": _COMPUTE_S,
        "bed": asdict(spec),
    }


def tables(runs: Sequence[Run]) -> str:
    """A line for each network."""
    return markdown.matrix(runs, _TITLES, ())
