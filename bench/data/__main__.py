"""``python -m bench.data``: seconds of epochs over images in a slow origin, by contender.

The origin gives 50 MB/s to all together and lets each object wait for 20 ms, or as options say: a
local HTTP server that is read through fsspec, or a folder. Two pretended nodes of two ranks, each
with one DataLoader worker, read all images once per epoch. Writes bench/results/data.json, a
picture beside it and, with ``--write``, the tables of docs/data.md; ``--check`` compares those with
the files.

Other contenders than torch and aiacc need aiohttp, diskcache, webdataset:
those that are not installed are left out, and the file says so.
"""

import argparse
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import machine
from bench.data import images, page
from bench.data.contenders import CONTENDERS
from bench.data.origin import Throttle, serve
from bench.machine import ROOT

RESULT = ROOT / "bench" / "results" / "data.json"
NODES, LOCAL = 2, 2
EPOCHS = 4
#: Images in a shard, for those who read shards.
_SHARD = 32
#: What a contender needs besides torch.
NEEDS = {
    "filecache": "aiohttp",
    "diskcache": "diskcache",
    "webdataset": "webdataset",
}
_PACKAGES = ("fsspec", "aiohttp", "diskcache", "webdataset", "pillow")
#: Kind of images, origin, contenders.
ROWS = (
    ("textures", "http", tuple(CONTENDERS)),
    ("digits", "http", ("bare", "diskcache", "aiacc")),
    ("textures", "folder", ("bare", "aiacc")),
)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.data", description=__doc__)
    parser.add_argument("--count", type=int, default=384, help="images (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (%(default)s)")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="some of %(default)s")
    parser.add_argument("--mb-per-s", type=float, default=50.0, help="of the origin (%(default)s)")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="likewise (%(default)s)")
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--write", action="store_true", help="the tables of the page, too")
    parser.add_argument("--check", action="store_true", help="compare the tables, run nothing")
    options = parser.parse_args()
    if options.check:
        text = page.PAGE.read_text()
        return 0 if text == page.with_all_tables(text, RESULT.parent) else 1
    wanted = options.contenders.split(",")
    slowness = options.mb_per_s * 1e6, options.latency_ms / 1e3
    report = measured(options.count, options.repeats, wanted, slowness)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    page.draw(report, options.json.with_suffix(".svg"))
    if options.write:
        page.PAGE.write_text(page.with_all_tables(page.PAGE.read_text(), RESULT.parent))
    return 0


def measured(
    count: int, repeats: int, wanted: Sequence[str], slowness: tuple[float, float]
) -> dict[str, Any]:
    """All runs, and what they were made on. ``slowness``: bytes per second, seconds per object."""
    there, absent = [], {}
    for name in wanted:
        needed = NEEDS.get(name)
        if needed is None or importlib.util.find_spec(needed) is not None:
            there.append(name)
        else:
            absent[name] = f"{needed} is not installed"
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
        sizes = {kind: prepare(kind, count, Path(folder) / kind, there) for kind in images.KINDS}
        for repeat in range(repeats):
            for kind, origin, contenders in ROWS:
                for name in contenders:
                    if name in there:
                        one = run(name, kind, origin, count, Path(folder) / kind, slowness)
                        runs.append({**one, "repeat": repeat})
                        print(name, kind, origin, one.get("seconds") or one["error"], flush=True)
    return {
        "kind": "measured",
        "machine": machine.describe(),
        "versions": {**machine.versions(), **{name: _version(name) for name in _PACKAGES}},
        "commit": machine.commit(),
        "load": machine.load(),
        "origin": dict(zip(("bytes_per_s", "latency_s"), slowness, strict=True)),
        "nodes": NODES,
        "local_size": LOCAL,
        "count": count,
        "bytes": sizes,
        "absent": absent,
        "runs": runs,
    }


def prepare(kind: str, count: int, folder: Path, contenders: Sequence[str]) -> int:
    """Write the images, and shards of them for those who want shards; returns their bytes."""
    total = images.make(kind, count, folder)
    if kind == "textures" and "webdataset" in contenders:
        _make_tars(kind, count, folder)
    return total


def _make_tars(kind: str, count: int, folder: Path) -> None:
    (folder / "wds").mkdir()
    names = []
    for begin in range(0, count, _SHARD):
        names.append(f"{begin}.tar")
        with tarfile.open(folder / "wds" / names[-1], "w") as tar:
            for index in range(begin, min(begin + _SHARD, count)):
                tar.add(folder / f"{index}.jpg", f"{index}.jpg")
                label = str(images.label_of(kind, index)).encode()
                entry = tarfile.TarInfo(f"{index}.cls")
                entry.size = len(label)
                tar.addfile(entry, io.BytesIO(label))
    (folder / "wds" / "names").write_text("\n".join(names))


def run(
    contender: str,
    kind: str,
    origin: str,
    count: int,
    folder: Path,
    slowness: tuple[float, float],
) -> dict[str, Any]:
    """One job: seconds of each epoch, from the first rank's begin to the last one's end."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-data-run-") as place,
        tempfile.TemporaryDirectory(prefix="aiacc-bench-", dir="/dev/shm") as memory,
    ):
        throttle = Throttle(Path(place) / "throttle", *slowness)
        with serve(folder, throttle) as url:
            job = {
                "contender": contender,
                "kind": kind,
                "origin": origin,
                "count": count,
                "epochs": EPOCHS,
                "nodes": NODES,
                "folder": str(folder),
                "url": url,
                "throttle": throttle.path,
                "bytes_per_s": throttle.bytes_per_s,
                "latency_s": throttle.latency_s,
                "disk": f"{place}/disk",
                "memory": memory,
                "results": place,
            }
            file = Path(place) / "job.json"
            file.write_text(json.dumps(job))
            command = [sys.executable, "-m", "aiacc.run", "-np", str(NODES * LOCAL), sys.executable]
            ended = subprocess.run(
                [*command, "-m", "bench.data.worker", str(file)],
                cwd=ROOT,
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        fields = {"contender": contender, "kind": kind, "origin": origin}
        if ended.returncode:
            return {**fields, "error": (ended.stdout + ended.stderr)[-2000:]}
        ranks = [json.loads((Path(place) / f"{rank}.json").read_text()) for rank in range(4)]
        shutil.rmtree(f"{place}/disk", ignore_errors=True)
    return {**fields, **epochs_of(ranks)}


def epochs_of(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Seconds, images and sums of pixels of each epoch, over all ranks."""
    epochs = list(zip(*(rank["epochs"] for rank in ranks), strict=True))
    return {
        "seconds": [max(r[1] for r in one) - min(r[0] for r in one) for one in epochs],
        "images": [sum(r[2] for r in one) for one in epochs],
        "sums": [sum(r[3] for r in one) for one in epochs],
        "statistics": ranks[0].get("statistics"),
    }


def _environment() -> dict[str, str]:
    # Ranks and workers share the cores.
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
