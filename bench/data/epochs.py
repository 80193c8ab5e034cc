"""Epochs over images in a slow origin, by contender.

The origin gives so many bytes per second to all together and lets each object wait: a local HTTP
server that is read through fsspec, or a folder. Two pretended nodes of two ranks, with one
DataLoader worker each unless a title says more, read all images once per epoch. A sample is an
epoch, from the first rank's begin, behind a barrier, to the last one's end, on one clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from bench import job, plots
from bench.record import Run, part, samples
from bench.tables import spread, table
from bench.turns import by_name

NODES, LOCAL = 2, 2
COUNT = 384
EPOCHS = 4
#: Those that the tables have.
_SHOWN = (1, 2, EPOCHS)
_ROUNDS = 5
_PEERS = ("fsspec", "aiohttp", "diskcache", "webdataset", "pillow")
TITLES = {
    **{f"bare:{workers}": f"DataLoader alone, {workers} workers" for workers in (4, 8)},
    **{f"filecache:{workers}": f"fsspec's filecache, {workers} workers" for workers in (4, 8)},
    **{f"diskcache:{workers}": f"diskcache, {workers} workers" for workers in (4, 8)},
    **{f"decoded:{workers}": f"diskcache, decoded, {workers} workers" for workers in (1, 4, 8)},
    **{f"webdataset:{workers}": f"WebDataset (shards), {workers} workers" for workers in (1, 4)},
    "aiacc": "aiacc",
    "aiacc_node": 'aiacc, `shard="node"`',
    "aiacc_half": "aiacc, memory for half of the images, no disk",
    "aiacc_neighbour": 'the same, `shard="neighbour"`',
}

OURS = tuple(name for name in TITLES if name.startswith("aiacc"))
PEERS = tuple(name for name in TITLES if name not in OURS)


@dataclass(frozen=True)
class _Cell:
    title: str
    contenders: tuple[str, ...]
    origin: str = "http"
    bytes_per_s: float = 50e6
    latency_s: float = 0.02


_CELLS = {
    "http": _Cell("images, HTTP", tuple(TITLES)),
    "folder": _Cell("images, folder", ("bare:4", "bare:8", "aiacc"), origin="folder"),
    "slow": _Cell(
        "images, HTTP, 5 MB/s and 200 ms",
        ("aiacc_node", "aiacc_half", "aiacc_neighbour"),
        bytes_per_s=5e6,
        latency_s=0.2,
    ),
}
CELLS = tuple(_CELLS)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of each epoch of jobs of all contenders, in turn.

    Raises:
        RuntimeError: Some have not read the same images as others.
    """
    from bench.data import images

    one = _CELLS[cell]
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
        origin = Path(folder) / "images"
        size = images.make(COUNT, origin)
        jobs = by_name(one.contenders, rounds or _ROUNDS, lambda name: _job(name, one, origin))
    found = [found for of_name in jobs.values() for found in of_name]
    for what in ("images", "sums"):
        if len(set().union(*(each[what] for each in found))) > 1:
            raise RuntimeError(f"not everybody read the same in each epoch: {jobs}")
    return {
        "title": one.title,
        "unit": "s",
        "samples": {
            key_of(name, at + 1): [[found["seconds"][at]] for found in of_name]
            for name, of_name in jobs.items()
            for at in range(EPOCHS)
        },
        "statistics": {
            name: [found["statistics"] for found in of_name] for name, of_name in jobs.items()
        },
        "peers": {name: metadata.version(name) for name in _PEERS},
        "origin": {"bytes_per_s": one.bytes_per_s, "latency_s": one.latency_s, "bytes": size},
    }


def key_of(contender: str, epoch: int) -> str:
    """The key of samples."""
    return f"{contender}, epoch {epoch}"


def _job(contender: str, cell: _Cell, origin: Path) -> dict[str, Any]:
    from bench.data.origin import Throttle, serve

    with (
        tempfile.TemporaryDirectory(prefix="bench-data-run-") as place,
        tempfile.TemporaryDirectory(prefix="aiacc-bench-", dir="/dev/shm") as memory,
    ):
        throttle = Throttle(Path(place) / "throttle", cell.bytes_per_s, cell.latency_s)
        with serve(origin, throttle) as url:
            task = {
                **{"contender": contender, "count": COUNT, "epochs": EPOCHS},
                **{"nodes": NODES, "origin": str(origin), "shards": url},
                "url": url if cell.origin == "http" else None,
                "throttle": [throttle.path, cell.bytes_per_s, cell.latency_s],
                **{"disk": f"{place}/disk", "memory": memory},
            }
            ranks = job.run("bench.data.contenders:read", task, ranks=NODES * LOCAL, timeout_s=300)
    return epochs_of(ranks)


def epochs_of(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Seconds, images and sums of pixels of each epoch, over all ranks."""
    epochs = list(zip(*(rank["epochs"] for rank in ranks), strict=True))
    return {
        "seconds": [max(r[1] for r in one) - min(r[0] for r in one) for one in epochs],
        "images": [sum(r[2] for r in one) for one in epochs],
        "sums": [sum(r[3] for r in one) for one in epochs],
        "statistics": ranks[0].get("statistics"),
    }


def tables(runs: Sequence[Run]) -> str:
    """Seconds and images per second of some epochs, a line for each contender."""
    lines = []
    for run in runs:
        for name in _contenders(run):
            line = [run["title"], TITLES[name]]
            for epoch in _SHOWN:
                key = key_of(name, epoch)
                line.append(f"{spread(run, key)}, {COUNT / median(samples(run, key)):,.0f}/s")
            lines.append(line)
    return table(["read", "by", *(f"epoch {epoch}" for epoch in _SHOWN)], lines)


def plot(runs: Sequence[Run]) -> Any:
    """Bars of images per second over HTTP, by contender and epoch."""
    (run,) = (one for one in runs if one["cell"] == "http")
    figure, (axis,) = plots.panels(1, height=4.5)
    names = _contenders(run)
    for place, epoch in enumerate(_SHOWN):
        rates = [COUNT / median(samples(run, key_of(name, epoch))) for name in names]
        ticks = [number + (place - 1) * 0.27 for number in range(len(names))]
        axis.barh(ticks, rates, 0.25, label=f"epoch {epoch}")
    axis.set_yticks(range(len(names)), [TITLES[name].replace("`", "") for name in names])
    axis.invert_yaxis()
    axis.set_xlabel(f"images per second, {NODES} nodes with {LOCAL} ranks each")
    axis.set_xscale("log")
    axis.legend()
    return figure


def contests(run: Run) -> list[Run]:
    """A run for each epoch that the tables have."""
    return [
        part(run, f"epoch {epoch}", {name: key_of(name, epoch) for name in TITLES})
        for epoch in _SHOWN
    ]


def _contenders(run: Run) -> list[str]:
    return [name for name in TITLES if key_of(name, 1) in run["samples"]]
