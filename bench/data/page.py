"""The tables of docs/data.md and the picture, from what `bench.data` has measured."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import ROOT
from bench.report import between_markers

PAGE = ROOT / "docs" / "data.md"
#: Where the table of a result file is in the page.
MARKERS = {"data": "data:epochs", "data_slow": "data:slow"}
TITLES = {
    "bare": "DataLoader alone",
    "filecache": "fsspec's filecache",
    "diskcache": "diskcache",
    "webdataset": "WebDataset (shards)",
    "aiacc": "aiacc",
    "aiacc_node": 'aiacc, `shard="node"`',
    "aiacc_one": "aiacc, 1 request, nothing ahead",
    "aiacc_half": "aiacc, memory for half of the images, no disk",
    "aiacc_neighbour": 'the same, `shard="neighbour"`',
}
_WHAT = {
    ("textures", "http"): "images, HTTP",
    ("digits", "http"): "digits, HTTP",
    ("textures", "folder"): "images, folder",
}


def rows_of(report: dict[str, Any]) -> dict[tuple[str, str, str], list[float]]:
    """Medians of the seconds of each epoch, by what was read and by contender.

    Of runs that have read every image once: with shards some ranks may have got more than others.
    """
    found: dict[tuple[str, str, str], list[list[float]]] = {}
    for run in report["runs"]:
        if run.get("images") == [report["count"]] * len(run.get("seconds", ())):
            key = (run["kind"], run["origin"], run["contender"])
            found.setdefault(key, []).append(run["seconds"])
    return {
        key: [median(epochs) for epochs in zip(*runs, strict=True)] for key, runs in found.items()
    }


def with_all_tables(text: str, results: Path) -> str:
    """``text`` with the tables of the result files of a folder."""
    for name, marker in MARKERS.items():
        report = json.loads((results / f"{name}.json").read_text())
        text = between_markers(text, table(report), PAGE.name, marker)
    return text


def table(report: dict[str, Any]) -> str:
    """Seconds and images per second of epochs 1, 2 and the last."""
    count = report["count"]
    last = max(len(seconds) for seconds in rows_of(report).values())
    lines = [
        f"| read | by | epoch 1 | epoch 2 | epoch {last} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (kind, origin, contender), seconds in rows_of(report).items():
        cells = [f"{seconds[n]:.2f} s, {count / seconds[n]:,.0f}/s" for n in (0, 1, last - 1)]
        lines.append(f"| {_WHAT[kind, origin]} | {TITLES[contender]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(report: dict[str, Any], path: Path) -> None:
    """Bars of images per second over HTTP, by contender and epoch."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "aiacc"
    rows = {
        key[2]: seconds
        for key, seconds in rows_of(report).items()
        if key[:2] == ("textures", "http")
    }
    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    last = max(map(len, rows.values()))
    for place, epoch in enumerate((0, 1, last - 1)):
        heights = [report["count"] / seconds[epoch] for seconds in rows.values()]
        ticks = [number + (place - 1) * 0.27 for number in range(len(rows))]
        axes.barh(ticks, heights, 0.25, label=f"epoch {epoch + 1}")
    axes.set_yticks(range(len(rows)), [TITLES[name].replace("`", "") for name in rows])
    axes.invert_yaxis()
    axes.set_xlabel("images per second, 2 nodes with 2 ranks each")
    axes.set_xscale("log")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
