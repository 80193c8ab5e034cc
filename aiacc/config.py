"""What the Python side reads from the environment; the only module that touches ``os.environ``.

The ``AIACC_*`` variables are parsed by the core (``aiacc._core.config``). This module reads what
launchers leave behind, and builds the environment of child processes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MpiFlavour = Literal["openmpi", "mpich"]

#: Ranks and sizes that a launcher did not tell.
UNKNOWN = -1

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


@dataclass(frozen=True)
class LauncherEnvironment:
    """Every launcher that left its traces; a process may have been started by none or several."""

    torchrun: TorchrunEnvironment | None
    mpi: MpiEnvironment | None
    slurm: SlurmEnvironment | None = None


def launcher_environment(environ: Mapping[str, str] | None = None) -> LauncherEnvironment:
    """Read the traces of launchers.

    Args:
        environ: Variables to read instead of those of this process.

    Raises:
        ValueError: A variable is not the number it should be; the text names it.
    """
    variables = os.environ if environ is None else environ
    return LauncherEnvironment(
        torchrun=_torchrun(variables), mpi=_mpi(variables), slurm=_slurm(variables)
    )


def horovod_variables() -> dict[str, str]:
    """Everything in the environment whose name begins like Horovod's variables."""
    return _beginning_with("HOROVOD_")


def own_variables() -> dict[str, str]:
    """Everything in the environment whose name begins like aiacc's variables, known or not."""
    return _beginning_with("AIACC_")


def _beginning_with(prefix: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


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


def _torchrun(variables: Mapping[str, str]) -> TorchrunEnvironment | None:
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(not variables.get(name) for name in needed):
        return None
    rank, size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    _check_rank("RANK", rank, "WORLD_SIZE", size)
    return TorchrunEnvironment(
        rank=rank,
        size=size,
        local_rank=_number(variables, "LOCAL_RANK", UNKNOWN),
        local_size=_number(variables, "LOCAL_WORLD_SIZE", UNKNOWN),
        master_addr=variables["MASTER_ADDR"],
        master_port=_number(variables, "MASTER_PORT"),
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        restart_count=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0),
        run_id=variables.get("TORCHELASTIC_RUN_ID", ""),
    )


def _mpi(variables: Mapping[str, str]) -> MpiEnvironment | None:
    if variables.get("OMPI_COMM_WORLD_RANK"):
        return _mpi_from(
            variables,
            "openmpi",
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        )
    if variables.get("PMI_RANK") and variables.get("PMI_SIZE"):
        return _mpi_from(
            variables, "mpich", ("PMI_RANK", "PMI_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        )
    return None


def _mpi_from(
    variables: Mapping[str, str],
    flavour: MpiFlavour,
    world: tuple[str, str],
    local: tuple[str, str],
) -> MpiEnvironment:
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
    )


def _slurm(variables: Mapping[str, str]) -> SlurmEnvironment | None:
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
