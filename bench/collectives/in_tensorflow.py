"""TensorFlow gives the work: against tf.distribute, and aiacc's front-end for torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.collectives.peers import measured
from bench.record import Run
from bench.tables import contest

_WORKS = {
    "step": "training step of Keras, ResNet-50's shapes",
    "gradients": "the 161 gradients, computed and averaged in a tf.function",
}
_WHERE = {"shm": "shared memory (tf.distribute: TCP)", "tcp": "TCP"}
CELLS = tuple(f"{work}:{way}" for work in _WORKS for way in _WHERE)
OURS = ("aiacc",)
PEERS = ("tf_distribute",)
TITLES = {
    "aiacc": "aiacc",
    "tf_distribute": "tf.distribute, RING, custom loop",
    "aiacc_torch": "aiacc, from torch",
    "none": "no communication",
}
_JOBS = 5


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs in which all contenders take turns."""
    work, way = cell.split(":")
    task = {"work": work, "ranks": 2, "rounds": rounds or 10}
    found = measured("bench.collectives.graphs:rank", task, way, _JOBS)
    return {"title": f"{_WORKS[work]}; {_WHERE[way]}", **found}


def tables(runs: Sequence[Run]) -> str:
    """All contenders of each cell; gradients are compared with aiacc's other front-end."""
    return contest(runs, TITLES, (*PEERS, "aiacc_torch"), OURS)
