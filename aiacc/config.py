"""What the Python side reads from the environment; the only module that touches ``os.environ``.

The ``AIACC_*`` variables are parsed by the core (``aiacc._core.config``). This module reads what
launchers leave behind, and builds the environment of child processes.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiacc.siblings import ancestors

MpiFlavour = Literal["openmpi", "mpich"]

#: Ranks and sizes that a launcher did not tell.
UNKNOWN = -1

#: Rank and size that each mpirun tells, also among those of a host, and how its ranks meet.
_WORLD: dict[MpiFlavour, tuple[str, str]] = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpich": ("PMI_RANK", "PMI_SIZE"),
}
_LOCAL: dict[MpiFlavour, tuple[str, str]] = {
    "openmpi": ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpich": ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
_WAY: dict[MpiFlavour, str] = {"openmpi": "PMIX_NAMESPACE", "mpich": "PMI_FD"}

#: Numbers from this on mark batch scripts, interactive shells and the like (slurm.h).
_SPECIAL_STEPS = 0xFFFFFFF0


@dataclass(frozen=True)
class TorchrunEnvironment:
    """What torchrun, or anything that follows its convention, told this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    master_addr: str
    master_port: int
    #: The agent already listens on ``master_port``: be a client of its store, never bind the port.
    agent_store: bool
    restart_count: int
    run_id: str
    #: How many of this process and its ancestors began with these variables: the launcher with the
    #: smallest number is the nearest. 0: this process has set them itself.
    distance: int = 0

    @property
    def told(self) -> str:
        """Variables and values, for a message."""
        return f"RANK={self.rank}, WORLD_SIZE={self.size}"


_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_EXPLICIT = ("AIACC_RANK", "AIACC_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE")


@dataclass(frozen=True)
class MpiEnvironment:
    """What mpirun told this process. ``local_rank`` and ``local_size`` may be `UNKNOWN`."""

    flavour: MpiFlavour
    rank: int
    size: int
    local_rank: int
    local_size: int
    #: Descriptor of hydra's PMI-1 channel, `UNKNOWN` without one.
    pmi_fd: int
    #: PMIx name space of the job, "" without PMIx.
    pmix_namespace: str
    #: As that of torchrun.
    distance: int = 0

    @property
    def told(self) -> str:
        """Variables and values, for a message."""
        rank, size = _WORLD[self.flavour]
        return f"{rank}={self.rank}, {size}={self.size}"


@dataclass(frozen=True)
class SlurmEnvironment:
    """What srun told this process, a task of a job step."""

    rank: int
    size: int
    local_rank: int
    #: Number of this node within the step, `UNKNOWN` if it was not told.
    node: int
    job: int
    step: int
    #: Nodes of the step and tasks on each, in Slurm's abbreviations.
    nodes: str
    tasks_per_node: str
    cluster: str
    user: str
    #: As that of torchrun.
    distance: int = 0

    @property
    def told(self) -> str:
        """Variables and values, for a message."""
        return f"SLURM_PROCID={self.rank}, SLURM_STEP_NUM_TASKS={self.size}"


@dataclass(frozen=True)
class LauncherEnvironment:
    """Every launcher that left its traces; a process may have been started by none or several."""

    torchrun: TorchrunEnvironment | None
    mpi: MpiEnvironment | None
    slurm: SlurmEnvironment | None = None
    #: Of the mpirun of another flavour, which is not nearer than ``mpi``.
    other_mpi: MpiEnvironment | None = None
    #: As that of torchrun, of what the user has set.
    explicit_distance: int = 0
    #: Why there is no torchrun although some of its variables divide the job; "" if none do.
    torchrun_lack: str = ""


def launcher_environment(
    environ: Mapping[str, str] | None = None, lineage: Sequence[Mapping[str, str]] = ()
) -> LauncherEnvironment:
    """Read the traces of launchers.

    Args:
        environ: Variables to read instead of those of this process.
        lineage: With ``environ``: the variables with which that process began, and its parent, and
            so on.

    Raises:
        ValueError: A variable is not the number it should be; the text names it.
    """
    if environ is None:
        return launcher_environment(os.environ, _lineage())
    mpis = [found for flavour in _WORLD if (found := _mpi(environ, lineage, flavour)) is not None]
    mpis.sort(key=lambda found: found.distance)
    mpi, other_mpi = [*mpis, None, None][:2]
    return LauncherEnvironment(
        torchrun=_torchrun(environ, lineage),
        mpi=mpi,
        slurm=_slurm(environ, lineage),
        other_mpi=other_mpi,
        explicit_distance=_distance(environ, lineage, *_EXPLICIT),
        torchrun_lack=_torchrun_lack(environ),
    )


def _lineage() -> list[dict[str, str]]:
    """With which variables this process began, its parent, and so on, as far as it may read."""
    found = []
    for process in ("self", *ancestors()):
        try:
            text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
        except OSError:  # another user's
            break
        found.append(dict(entry.partition("=")[::2] for entry in text.split("\0")))
    return found


def _distance(
    variables: Mapping[str, str], lineage: Sequence[Mapping[str, str]], *names: str
) -> int:
    """How many of a line of processes began with the values that these variables have."""
    for distance, earlier in enumerate(lineage):
        if any(earlier.get(name) != variables.get(name) for name in names):
            return distance
    return len(lineage)


def horovod_variables() -> dict[str, str]:
    """Everything in the environment whose name begins like Horovod's variables."""
    return _beginning_with("HOROVOD_")


def own_variables() -> dict[str, str]:
    """Everything in the environment whose name begins like aiacc's variables, known or not."""
    return _beginning_with("AIACC_")


def _beginning_with(prefix: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def as_set(text: str, aliases: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """``text`` with the names by which variables were set, where it has others for the same.

    Args:
        text: Of an error.
        aliases: Horovod's variable, or "", by ours, which counts before.
        environ: Variables to read instead of those of this process.
    """
    given = os.environ if environ is None else environ

    def name(match: re.Match[str]) -> str:
        alias = aliases.get(match[0], "")
        return alias if alias and given.get(alias) and not given.get(match[0]) else match[0]

    return re.sub(r"\bAIACC_\w+", name, text)


def child_environment(
    changes: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment for a child process: this one's (or ``environ``) with ``changes`` applied."""
    return {**(os.environ if environ is None else environ), **changes}


def set_default(name: str, value: str) -> None:
    """Set a variable of this process, which C libraries and children see, unless it is set."""
    os.environ.setdefault(name, value)


def search_directories() -> list[str]:
    """Directories to search for programs: the one of the interpreter first, then ``PATH``."""
    beside = os.path.dirname(sys.executable)  # noqa: PTH120 - a symlink must not be resolved
    return [folder for folder in [beside, *os.environ.get("PATH", "").split(os.pathsep)] if folder]


def executable_path() -> str:
    """`search_directories` in the form of the variable ``PATH``."""
    return os.pathsep.join(search_directories())


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where this user keeps what can be made again; it may not exist yet."""
    caches = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    # A relative one counts as unset, by the convention that the variable comes from.
    base = Path(caches) if Path(caches).is_absolute() else Path.home() / ".cache"
    return base / "aiacc"


def chosen_compiler(environ: Mapping[str, str] | None = None) -> list[str]:
    """Command of the C++ compiler that the user chose by ``CXX``; [] for none."""
    return shlex.split((os.environ if environ is None else environ).get("CXX", ""))


def _torchrun(
    variables: Mapping[str, str], lineage: Sequence[Mapping[str, str]]
) -> TorchrunEnvironment | None:
    if any(not variables.get(name) for name in _TORCHRUN):
        return None
    rank, size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    _check_rank("RANK", rank, "WORLD_SIZE", size)
    port = _number(variables, "MASTER_PORT")
    if size > 1 and not 1 <= port <= 65535:
        raise ValueError(
            f"[config] MASTER_PORT={port} (expected a port from 1 to 65535); set the same one on "
            "every rank"
        )
    return TorchrunEnvironment(
        rank=rank,
        size=size,
        local_rank=_number(variables, "LOCAL_RANK", UNKNOWN),
        local_size=_number(variables, "LOCAL_WORLD_SIZE", UNKNOWN),
        master_addr=variables["MASTER_ADDR"],
        master_port=port,
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        restart_count=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0),
        run_id=variables.get("TORCHELASTIC_RUN_ID", ""),
        distance=_distance(variables, lineage, *_TORCHRUN, "TORCHELASTIC_RUN_ID"),
    )


def _torchrun_lack(variables: Mapping[str, str]) -> str:
    present = [name for name in _TORCHRUN if variables.get(name)]
    absent = [name for name in _TORCHRUN if name not in present]
    size = variables.get("WORLD_SIZE", "")
    if not absent or len(present) < 2 or not size.isdecimal() or int(size) < 2:
        return ""
    told = ", ".join(f"{name}={variables[name]}" for name in present)
    return (
        f"[bootstrap] {told} without {', '.join(absent)} (expected all four, as torchrun sets "
        "them); set the rest too, or unset WORLD_SIZE if this process shall be alone"
    )


def _mpi(
    variables: Mapping[str, str], lineage: Sequence[Mapping[str, str]], flavour: MpiFlavour
) -> MpiEnvironment | None:
    world, local = _WORLD[flavour], _LOCAL[flavour]
    if not all(variables.get(name) for name in world):
        return None
    rank, size = _number(variables, world[0]), _number(variables, world[1])
    _check_rank(world[0], rank, world[1], size)
    return MpiEnvironment(
        flavour=flavour,
        rank=rank,
        size=size,
        local_rank=_number(variables, local[0], UNKNOWN),
        local_size=_number(variables, local[1], UNKNOWN),
        pmi_fd=_number(variables, "PMI_FD", UNKNOWN),
        pmix_namespace=variables.get("PMIX_NAMESPACE", ""),
        distance=_distance(variables, lineage, *world, _WAY[flavour]),
    )


def _slurm(
    variables: Mapping[str, str], lineage: Sequence[Mapping[str, str]]
) -> SlurmEnvironment | None:
    # A batch script, or a shell of salloc, has the variables of its job, the number of tasks among
    # them; it is no task of a step, or of one that has a special number.
    if not variables.get("SLURM_PROCID") or not variables.get("SLURM_STEP_ID"):
        return None
    step = _number(variables, "SLURM_STEP_ID")
    sizes = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if variables.get(name)]
    if step >= _SPECIAL_STEPS or not sizes or not variables.get("SLURM_JOB_ID"):
        return None
    rank, size = _number(variables, "SLURM_PROCID"), _number(variables, sizes[0])
    _check_rank("SLURM_PROCID", rank, sizes[0], size)
    return SlurmEnvironment(
        rank=rank,
        size=size,
        local_rank=_number(variables, "SLURM_LOCALID", UNKNOWN),
        node=_number(variables, "SLURM_NODEID", UNKNOWN),
        job=_number(variables, "SLURM_JOB_ID"),
        step=step,
        nodes=variables.get("SLURM_STEP_NODELIST", ""),
        tasks_per_node=variables.get("SLURM_STEP_TASKS_PER_NODE", ""),
        cluster=variables.get("SLURM_CLUSTER_NAME", ""),
        user=variables.get("SLURM_JOB_USER", ""),
        distance=_distance(variables, lineage, "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    )


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"[config] {name}={text!r} (expected a whole number); the launcher sets it, so look "
            "for what changed it, or unset it"
        ) from None


def _check_rank(rank_name: str, rank: int, size_name: str, size: int) -> None:
    if size < 1 or not 0 <= rank < size:
        raise ValueError(
            f"[config] {rank_name}={rank} and {size_name}={size} (expected 0 <= rank < size); "
            "the launcher sets both"
        )
