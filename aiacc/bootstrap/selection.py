"""Which way of bootstrapping this process has, by what it was told and who started it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping

from aiacc.bootstrap.address import join_address
from aiacc.bootstrap.provider import GENERATIONS, AloneProvider, Provider
from aiacc.bootstrap.providers.pmi import PmiProvider
from aiacc.bootstrap.providers.pmix import PmixProvider
from aiacc.bootstrap.providers.shared_file import SharedFileProvider
from aiacc.bootstrap.providers.slurm import SlurmProvider, tasks_of_node
from aiacc.bootstrap.providers.torchrun import TorchrunProvider, has_torch
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.config import (
    UNKNOWN,
    LauncherEnvironment,
    MpiEnvironment,
    SlurmEnvironment,
    TorchrunEnvironment,
)
from aiacc.exceptions import BootstrapError
from aiacc.siblings import CONNECTION

_log = logging.getLogger("aiacc.bootstrap")

#: What `aiacc._core.config` returns.
Config = Mapping[str, str | int | float | bool]


Launcher = TorchrunEnvironment | MpiEnvironment | SlurmEnvironment


def select_provider(environment: LauncherEnvironment, config: Config) -> Provider:
    """Choose how this process finds the other ranks.

    Explicit settings come first (AIACC_RANK and AIACC_SIZE, with AIACC_ADDR or
    AIACC_RENDEZVOUS_FILE), then the nearest of torchrun, mpirun and a step of Slurm; without any of
    them the process is alone. What others have left that says something else is named. Every call
    begins a new generation, so every rank must call this equally often. Blocks: never.

    Raises:
        BootstrapError: The settings are incomplete, impossible, or contradict the launcher; the
            text says which.
    """
    generation = GENERATIONS.next()
    launcher = launcher_of(environment)
    left = launcher is not None and environment.explicit_distance > launcher.distance
    explicit = _explicit(config, generation, launcher, left=left)
    if explicit is not None:
        return explicit
    if launcher is None and environment.torchrun_lack:
        raise BootstrapError(environment.torchrun_lack)
    leftovers = warning_about_leftovers(environment)
    if leftovers and launcher is not None and launcher.rank == 0:
        _log.warning("%s", leftovers)
    if launcher is None or launcher.size == 1:
        return AloneProvider(generation, told=launcher is not None)
    if isinstance(launcher, TorchrunEnvironment):
        return _torchrun(launcher, config, generation)
    if isinstance(launcher, MpiEnvironment):
        return _mpi(launcher, config, generation)
    return _slurm(launcher, config, generation)


def told(environment: LauncherEnvironment, config: Config) -> str:
    """What makes this process a rank of its job, "rank 1 of 2: ..."; "" if nothing does."""
    names = ("rank", "size", "addr", "token", "rendezvous_file")
    rank, size, address, _, path = explicit = [str(config[name]) for name in names]
    if str(UNKNOWN) not in (rank, size) and (size == "1" or address or path):
        return f"rank {rank} of {size}: {' '.join(explicit)}" if size != "1" else ""
    return told_by(launcher_of(environment))


def told_by(launcher: Launcher | None) -> str:
    """The same where that is the word of a launcher."""
    if launcher is None or launcher.size == 1:
        return ""
    text = f"rank {launcher.rank} of {launcher.size}: {dataclasses.replace(launcher, distance=0)}"
    if isinstance(launcher, MpiEnvironment) and _has_pmi(launcher):
        with contextlib.suppress(OSError):  # most that a rank starts do not inherit it
            return f"{text}{CONNECTION}{os.fstat(launcher.pmi_fd).st_ino}"
    return text


def launcher_of(environment: LauncherEnvironment) -> Launcher | None:
    """The launcher whose word counts; None if nobody launched this process. Pure.

    That is the nearest. Those that are equally near are srun, which sets variables of MPI's, too,
    and what came with the environment through a daemon that may not be looked at: then the launcher
    of several ranks counts, for a job that is divided by mistake is noticed by nobody.
    """
    found = launchers(environment)
    nearest = [one for one in found if one.distance == min(each.distance for each in found)]
    slurm = environment.slurm
    by_srun = slurm in nearest and slurm is not None and slurm.size > 1

    def is_usable(launcher: Launcher) -> bool:
        return not isinstance(launcher, MpiEnvironment) or not by_srun or _has_way(launcher)

    usable = [one for one in nearest if is_usable(one)]
    return max(usable, key=lambda one: one.size > 1, default=None)


def warning_about_leftovers(environment: LauncherEnvironment) -> str:
    """Which launchers' variables contradict those of the one that counts; "" if none do. Pure.

    A launcher inside a step of Slurm, or torchrun's agent inside a rank of mpirun, divides it as it
    likes.
    """
    chosen = launcher_of(environment)
    if chosen is None:
        return ""
    agent = isinstance(chosen, TorchrunEnvironment) and chosen.agent_store
    others = [
        one
        for one in launchers(environment)
        if (one.rank, one.size) != (chosen.rank, chosen.size)
        and not (
            chosen.size > 1
            and one.distance > chosen.distance
            and (agent or isinstance(one, SlurmEnvironment))
        )
    ]
    if not others:
        return ""
    told = " and ".join(f"{one.told} ({_name(one)})" for one in others)
    return (
        f"[bootstrap] {chosen.told} ({_name(chosen)}) count, and {told} do not (expected equal, or "
        "only one of them); unset what is left of another job"
    )


def launchers(environment: LauncherEnvironment) -> list[Launcher]:
    """All that have left traces in the variables of this process."""
    found = (environment.torchrun, environment.mpi, environment.other_mpi, environment.slurm)
    return [one for one in found if one is not None]


def _name(launcher: Launcher) -> str:
    if isinstance(launcher, TorchrunEnvironment):
        return "torchrun"
    return "mpirun" if isinstance(launcher, MpiEnvironment) else "srun"


def _torchrun(torchrun: TorchrunEnvironment, config: Config, generation: int) -> Provider:
    local_rank, local_size = _local(config, torchrun.local_rank, torchrun.local_size)
    if torchrun.agent_store or has_torch():
        return TorchrunProvider(
            torchrun, generation=generation, local_rank=local_rank, local_size=local_size
        )
    return RendezvousProvider(
        rank=torchrun.rank,
        size=torchrun.size,
        address=join_address(torchrun.master_addr, torchrun.master_port),
        token=str(config["token"]),
        generation=generation,
        local_rank=local_rank,
        local_size=local_size,
    )


def _mpi(mpi: MpiEnvironment, config: Config, generation: int) -> Provider:
    local_rank, local_size = _local(config, mpi.local_rank, mpi.local_size)
    if _has_pmi(mpi):
        return PmiProvider(
            rank=mpi.rank,
            size=mpi.size,
            descriptor=mpi.pmi_fd,
            generation=generation,
            local_rank=local_rank,
            local_size=local_size,
        )
    if mpi.pmix_namespace:
        return PmixProvider(
            rank=mpi.rank,
            size=mpi.size,
            generation=generation,
            local_rank=local_rank,
            local_size=local_size,
        )
    raise BootstrapError(
        f"[bootstrap] {mpi.flavour}'s mpirun started rank {mpi.rank} of {mpi.size}, but offers no "
        "way to find the others (expected PMI_FD or PMIX_NAMESPACE); set AIACC_RANK, AIACC_SIZE "
        "and AIACC_ADDR"
    )


def _has_pmi(mpi: MpiEnvironment) -> bool:
    return mpi.pmi_fd != UNKNOWN and mpi.flavour == "mpich"


def _has_way(mpi: MpiEnvironment) -> bool:
    return _has_pmi(mpi) or bool(mpi.pmix_namespace)


def _slurm(slurm: SlurmEnvironment, config: Config, generation: int) -> Provider:
    on_node = tasks_of_node(slurm.tasks_per_node, slurm.node)
    local_rank, local_size = _local(config, slurm.local_rank, on_node)
    return SlurmProvider(
        slurm,
        address=str(config["addr"]),
        token=str(config["token"]),
        generation=generation,
        local_rank=local_rank,
        local_size=local_size,
    )


def _explicit(
    config: Config, generation: int, launcher: Launcher | None, *, left: bool
) -> Provider | None:
    """What the user has set; ``left``: before the launcher came, for another job perhaps."""
    rank, size = int(config["rank"]), int(config["size"])
    address, path = str(config["addr"]), str(config["rendezvous_file"])
    if rank == UNKNOWN and size == UNKNOWN:
        if address and not path and isinstance(launcher, SlurmEnvironment):
            return None  # that provider takes it
        if address or path:
            name = "AIACC_ADDR" if address else "AIACC_RENDEZVOUS_FILE"
            raise BootstrapError(
                f"[bootstrap] {name} is set without AIACC_RANK and AIACC_SIZE (expected all three);"
                f" set them too, or unset {name}"
            )
        return None
    contradiction = _contradiction(rank, size, launcher)
    complete = rank != UNKNOWN and size != UNKNOWN and (size == 1 or bool(address or path))
    if contradiction and not complete:
        raise BootstrapError(
            f"{contradiction} (expected equal); unset AIACC_RANK and AIACC_SIZE, or start as many "
            "processes as AIACC_SIZE says"
        )
    divided = launcher is not None and launcher.size > 1
    # To be alone is what a rank asks of the programs that it starts, but not of all ranks; and none
    # of them may be rank 0 by what the rank of another job has left to all of them.
    tells = (rank == 0 and size > 1) or (left and launcher is not None and launcher.rank == 0)
    if contradiction and divided and tells:
        _log.warning("%s; the former counts, because AIACC_* say everything", contradiction)
    if launcher is not None and not complete and not (address or path):
        return None  # it says the same
    if rank == UNKNOWN or size == UNKNOWN:
        present, absent = (
            ("AIACC_SIZE", "AIACC_RANK") if rank == UNKNOWN else ("AIACC_RANK", "AIACC_SIZE")
        )
        raise BootstrapError(
            f"[bootstrap] {present} is set without {absent} (expected both); set {absent} too, or "
            f"unset {present}"
        )
    if size < 1 or not 0 <= rank < size:
        raise BootstrapError(
            f"[bootstrap] AIACC_RANK={rank} and AIACC_SIZE={size} (expected 0 <= rank < size); "
            "number the processes from 0"
        )
    if size == 1:
        return AloneProvider(generation, told=True)
    local_rank, local_size = _local(config, UNKNOWN, UNKNOWN)
    if address:
        return RendezvousProvider(
            rank=rank,
            size=size,
            address=address,
            token=str(config["token"]),
            generation=generation,
            local_rank=local_rank,
            local_size=local_size,
        )
    if path:
        return SharedFileProvider(
            rank=rank,
            size=size,
            path=path,
            generation=generation,
            local_rank=local_rank,
            local_size=local_size,
        )
    raise BootstrapError(
        f"[bootstrap] AIACC_RANK={rank} and AIACC_SIZE={size} without AIACC_ADDR or "
        "AIACC_RENDEZVOUS_FILE (expected one of them); set AIACC_ADDR=host:port of rank 0 on every "
        "rank"
    )


def _contradiction(rank: int, size: int, launcher: Launcher | None) -> str:
    """How explicit settings differ from what the launcher says; "" if they do not."""
    if launcher is None:
        return ""
    name = _name(launcher)
    if isinstance(launcher, TorchrunEnvironment):
        name += " (WORLD_SIZE, RANK)"
    if size not in (UNKNOWN, launcher.size):
        return f"[bootstrap] AIACC_SIZE={size}, but {name} says {launcher.size} processes"
    if rank not in (UNKNOWN, launcher.rank):
        return f"[bootstrap] AIACC_RANK={rank}, but {name} says that this is rank {launcher.rank}"
    return ""


def _local(config: Config, rank: int, size: int) -> tuple[int | None, int | None]:
    """Local rank and size: what the user set before what the launcher told."""
    settings = ((int(config["local_rank"]), rank), (int(config["local_size"]), size))
    local_rank, local_size = (
        told if explicit == UNKNOWN else explicit for explicit, told in settings
    )
    return (
        None if local_rank == UNKNOWN else local_rank,
        None if local_size == UNKNOWN else local_size,
    )
