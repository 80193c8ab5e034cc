"""A blocking all-reduce by size: aiacc, gloo, MPI by its own calls, oneCCL and UCC.

Each peer but gloo has jobs of its own, which take turns with those of aiacc and gloo.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import job, turns
from bench.collectives import peers
from bench.record import Run, part
from bench.tables import matrix

#: How ranks talk, and more ranks than two if there are.
CELLS = ("shm", "tcp", "shm:4", "shm:8")
SIZES = (4, 64, *(1 << n for n in (10, 12, 14, 16, 18, 20, 22, 24, 26)))
OURS = ("aiacc",)
TITLES = {
    "aiacc": "aiacc",
    "gloo_1": "torch gloo",
    "gloo_cut_4": "torch gloo, cut into 4, 4 contexts",
    "mpich": "MPICH",
    "open_mpi": "Open MPI",
    "intel_mpi": "Intel MPI",
    "oneccl": "oneCCL",
    "ucc": "UCC (by ucc_perftest: mean of 20 calls and all ranks)",
}
PEERS = tuple(key for key in TITLES if key not in OURS)
#: UCC's program gives one value per job.
_JOBS = 5
_RANKS = "bench.collectives.blocking_ranks:"


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs of all peers that are here, in turn."""
    way, _, more = cell.partition(":")
    ranks = int(more or 2)
    task = {"sizes": SIZES, "ranks": ranks, "rounds": rounds or 3}
    ours = partial(
        job.run,
        f"{_RANKS}aiacc_and_gloo",
        task,
        ranks=ranks,
        variables={"AIACC_ENGINE": peers.ENGINES[way]},
    )
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        # With more ranks than cores, those that spin only keep each other from working.
        theirs = {} if more else _others(task, way, Path(folder))
        found = turns.gathered(turns.alternate([ours, *theirs.values()], _JOBS))
    absent = ["more"] if more else [name for name in PEERS if name in peers.ABSENT.keys() - theirs]
    where = peers.where(way, ranks, found["samples"])
    title = f"one blocking all-reduce, float32; {where}"
    return {"title": title, "unit": "s", "absent": absent, "samples": found["samples"]}


def _others(task: dict[str, Any], way: str, folder: Path) -> dict[str, Callable[[], list[Any]]]:
    """Starts of the jobs of those that are here."""
    found = {
        name: peers.start(mpi, way, f"{_RANKS}mpi", {**task, "name": name}, {})
        for name, mpi in peers.all_mpis().items()
    }
    if intel := peers.intel_mpi():
        # Its worker waits for a core that the rank itself has.
        variables = {"CCL_YIELD": "sched_yield", "CCL_LOG_LEVEL": "error"}
        library = str(_compiled(peers.ONECCL, folder))
        task = {**task, "library": library}
        found["oneccl"] = peers.start(intel, way, f"{_RANKS}oneccl", task, variables)
    prefix = peers.place("UCC")
    if prefix is not None:
        program = prefix / "bin" / "ucc_perftest"
        variables = {"LD_LIBRARY_PATH": str(prefix / "lib")}
        variables |= {"UCX_TLS": "tcp,self"} if way == "tcp" else {}
        task = {**task, "program": str(program)}
        found["ucc"] = peers.start(peers.mpi_of(program), way, f"{_RANKS}ucc", task, variables)
    return found


def _compiled(prefix: Path, folder: Path) -> Path:
    """A library for ctypes."""
    source, library = Path(__file__).with_name("oneccl.cc"), folder / "liboneccl_bench.so"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    command += [f"-I{prefix}/include", f"-L{prefix}/lib", "-Wl,--allow-shlib-undefined", "-lccl"]
    subprocess.run(command, check=True)
    return library


def contests(run: Run) -> list[Run]:
    """One for each size."""
    found = [
        part(run, in_words(size), {name: f"{name}:{size}" for name in TITLES}) for size in SIZES
    ]
    return [one for one in found if one["samples"]]


def in_words(size: int) -> str:
    """Bytes as B, KiB or MiB."""
    unit = next(one for one in ("MiB", "KiB", "B") if size >= _UNITS[one])
    return f"{size // _UNITS[unit]} {unit}"


_UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def tables(runs: Sequence[Run]) -> str:
    """All sizes and contenders of each cell."""
    found = []
    for run in runs:
        rows = [{**row, "title": row["title"].rpartition(", ")[2]} for row in contests(run)]
        titles = {
            key: title
            for key, title in TITLES.items()
            if any(key in row["samples"] for row in rows)
        }
        found += [f"### {run['title']}", matrix(rows, titles, PEERS, OURS)]
    return "\n\n".join(found) + peers.absent(runs)
