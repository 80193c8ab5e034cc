"""A training step of Keras: aiacc's front-end for TensorFlow against tf.distribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.collectives.peers import measured
from bench.record import Run
from bench.tables import contest

_WHERE = {"shm": "shared memory (tf.distribute: TCP)", "tcp": "TCP"}
CELLS = tuple(f"step:{way}" for way in _WHERE)
OURS = ("aiacc",)
PEERS = ("tf_distribute",)
TITLES = {
    "aiacc": "aiacc",
    "tf_distribute": "tf.distribute, RING, custom loop",
    "none": "no communication",
}
_JOBS = 5


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs in which all contenders take turns."""
    way = cell.partition(":")[2]
    task = {"ranks": 2, "rounds": rounds or 10}
    title = f"training step of Keras, ResNet-50's shapes; {_WHERE[way]}"
    return {"title": title, **measured("bench.collectives.graphs:rank", task, way, _JOBS)}


def tables(runs: Sequence[Run]) -> str:
    """All contenders of each cell."""
    return contest(runs, TITLES, PEERS, OURS)
