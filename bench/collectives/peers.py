"""Jobs of aiacc and its peers in turn; where peers are that are not torch's. Imports none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import job, turns
from bench.machine import ROOT
from bench.record import Run

#: Where `make build/stamps/peers` puts oneCCL and Intel MPI.
ONECCL = ROOT / "build/peers/oneccl"
#: `AIACC_ENGINE` of each way for the ranks of one machine to talk.
ENGINES = {"shm": "auto", "tcp": "tcp"}
#: MiB that Horovod puts together.
FUSED = (1, 2)
HOROVOD = {f"horovod_{mib}": f"Horovod, fusion of {mib} MiB" for mib in FUSED}


@dataclass(frozen=True)
class Mpi:
    """An MPI.

    Attributes:
        launcher: Its mpirun.
        variables: For all its jobs.
        tcp: For jobs that may not use shared memory.
        options: Of mpirun: each rank stays on a core, which Intel's does anyway.
    """

    launcher: Path
    variables: dict[str, str] = field(default_factory=dict)
    tcp: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ("-bind-to", "core")

    def environment(self, way: str) -> dict[str, str]:
        """Variables of a job whose ranks talk in this way."""
        return self.variables | (self.tcp if way == "tcp" else {})


def place(name: str) -> Path | None:
    """The folder of a peer that ``AIACC_BENCH_name`` names."""
    return Path(found) if (found := os.environ.get(f"AIACC_BENCH_{name}")) else None


def where(way: str, ranks: int, names: Iterable[str]) -> str:
    """How ranks, if more than two how many, talk, and contenders that have sockets only. Pure."""
    alone = all(name.startswith(("aiacc", "gloo", "ddp", "none")) for name in names)
    shared = f"shared memory ({'no peer has it here' if alone else 'gloo: TCP'})"
    return f"{shared if way == 'shm' else 'TCP'}{f', {ranks} ranks' if ranks > 2 else ''}"


def mpich() -> Mpi:
    """That of PyPI, beside the interpreter."""
    library = str(Path(sys.prefix) / "lib" / "libmpi.so.12")
    variables = {"MPI4PY_LIBMPI": library}
    tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
    return Mpi(Path(sys.executable).parent / "mpirun", variables, tcp)


def open_mpi() -> Mpi | None:
    """That of the system."""
    launcher = shutil.which("mpirun.openmpi")
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MPI4PY_LIBMPI": "libmpi.so.40",
    }
    tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
    return Mpi(Path(launcher), variables, tcp) if launcher else None


def intel_mpi() -> Mpi | None:
    """That which comes with oneCCL."""
    prefix = ONECCL
    if not prefix.exists():
        return None
    libraries = str(prefix / "lib")
    variables = {
        "LD_LIBRARY_PATH": libraries,
        "FI_PROVIDER_PATH": libraries,
        "I_MPI_ROOT": str(prefix),
        "I_MPI_FABRICS": "shm",
        "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.12"),
    }
    tcp = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "I_MPI_COLL_INTRANODE": "pt2pt"}
    return Mpi(prefix / "bin" / "mpirun", variables, tcp, options=())


def all_mpis() -> dict[str, Mpi]:
    """Those whose own calls can be measured, by key."""
    if importlib.util.find_spec("mpi4py") is None:
        return {}
    found = {"mpich": mpich(), "open_mpi": open_mpi(), "intel_mpi": intel_mpi()}
    return {name: mpi for name, mpi in found.items() if mpi is not None}


def mpi_of(program: Path) -> Mpi:
    """The one that a program or a library was built with."""
    found = open_mpi() if b"libmpi.so.40" in program.read_bytes() else None
    return found or mpich()


def measured(
    ours: str,
    task: Mapping[str, Any],
    way: str,
    jobs: int,
    horovod: str = "",
    clock: turns.Clock = turns.seconds,
) -> dict[str, Any]:
    """The fields "unit", "samples", "cpu" and "absent" of a run.

    Args:
        ours: The function of ranks that have aiacc, and peers in the same processes.
        task: Theirs.
        way: How ranks talk.
        jobs: So many of each kind, in turn.
        horovod: The function of ranks that have Horovod, if that takes part.
        clock: Makes samples.
    """
    variables = {"AIACC_ENGINE": ENGINES[way]}
    starts = [partial(job.run, ours, task, ranks=task["ranks"], variables=variables)]
    theirs = _of_horovod(horovod, task, way) if horovod else []
    absent = ["horovod"] if horovod and not theirs else []
    found = turns.gathered(turns.alternate([*starts, *theirs], jobs), clock)
    return {"unit": "s", "absent": absent, **found}


def start(
    mpi: Mpi, way: str, work: str, task: Mapping[str, Any], variables: Mapping[str, str]
) -> Callable[[], list[Any]]:
    """A job that an mpirun starts."""
    return partial(
        job.run,
        work,
        task,
        ranks=task["ranks"],
        launcher=mpi.launcher,
        options=mpi.options,
        variables=mpi.environment(way) | dict(variables),
    )


def _of_horovod(work: str, task: Mapping[str, Any], way: str) -> list[Callable[[], list[Any]]]:
    """Starts of Horovod's jobs, one for each size of fusion; none if it is not here."""
    folder = place("HOROVOD")
    if folder is None:
        return []
    libraries = sorted(folder.glob("horovod/torch/mpi_lib*.so"))
    mpi = mpi_of(libraries[0]) if libraries else mpich()
    variables = {"PYTHONPATH": str(folder), "HOROVOD_CYCLE_TIME": "0.5"}
    return [
        start(
            mpi,
            way,
            work,
            {**task, "name": f"horovod_{mib}"},
            variables | {"HOROVOD_FUSION_THRESHOLD": str(mib << 20)},
        )
        for mib in FUSED
    ]


#: What is said of a peer that is not here.
ABSENT = {
    "horovod": "Horovod (set AIACC_BENCH_HOROVOD)",
    "mpich": "MPICH by its own calls (make build/stamps/peers)",
    "open_mpi": "Open MPI by its own calls (make build/stamps/peers)",
    "oneccl": "oneCCL and Intel MPI (make build/stamps/peers)",
    "ucc": "UCC (set AIACC_BENCH_UCC)",
    "more": "with 4 and 8 ranks Horovod, MPI, oneCCL and UCC, which spin (more ranks than cores)",
    "ddp": "with 4 and 8 ranks DDP's buckets of 5, 10 and 50 MiB (no memory for more models)",
}


def absent(runs: Sequence[Run]) -> str:
    """A line on the peers that runs had to do without; empty without any. Pure."""
    names = [name for name in ABSENT if any(name in run.get("absent", ()) for run in runs)]
    return f"\n\nPeers absent: {', '.join(ABSENT[name] for name in names)}." if names else ""
