"""Which way of bootstrapping this process has, by what it was told and who started it."""

from __future__ import annotations

from collections.abc import Mapping

from aiacc.bootstrap.pmi import PmiProvider
from aiacc.bootstrap.pmix import PmixProvider
from aiacc.bootstrap.provider import GENERATIONS, AloneProvider, Provider
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.bootstrap.shared_file import SharedFileProvider
from aiacc.bootstrap.torchrun import TorchrunProvider, has_torch
from aiacc.config import UNKNOWN, LauncherEnvironment, MpiEnvironment, TorchrunEnvironment
from aiacc.exceptions import BootstrapError

#: What `aiacc._core.config` returns.
Config = Mapping[str, str | int | float | bool]


def select_provider(environment: LauncherEnvironment, config: Config) -> Provider:
    """Choose how this process finds the other ranks.

    Explicit settings come first (AIACC_RANK and AIACC_SIZE, with AIACC_ADDR or
    AIACC_RENDEZVOUS_FILE), then torchrun, then mpirun; without any of them the process is alone.
    Every call begins a new generation, so every rank must call this equally often. Blocks: never.

    Raises:
        BootstrapError: The settings are incomplete or impossible; the text says which.
    """
    generation = GENERATIONS.next()
    explicit = _explicit(config, generation)
    if explicit is not None:
        return explicit
    if environment.torchrun is not None and environment.torchrun.size > 1:
        return _torchrun(environment.torchrun, config, generation)
    if environment.mpi is not None and environment.mpi.size > 1:
        return _mpi(environment.mpi, config, generation)
    return AloneProvider(generation)


def _torchrun(torchrun: TorchrunEnvironment, config: Config, generation: int) -> Provider:
    local_rank, local_size = _local(config, torchrun.local_rank, torchrun.local_size)
    if torchrun.agent_store or has_torch():
        return TorchrunProvider(
            torchrun, generation=generation, local_rank=local_rank, local_size=local_size
        )
    host = torchrun.master_addr
    return RendezvousProvider(
        rank=torchrun.rank,
        size=torchrun.size,
        address=f"[{host}]:{torchrun.master_port}"
        if ":" in host
        else f"{host}:{torchrun.master_port}",
        token=str(config["token"]),
        generation=generation,
        local_rank=local_rank,
        local_size=local_size,
    )


def _mpi(mpi: MpiEnvironment, config: Config, generation: int) -> Provider:
    local_rank, local_size = _local(config, mpi.local_rank, mpi.local_size)
    if mpi.pmi_fd != UNKNOWN and mpi.flavour == "mpich":
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


def _explicit(config: Config, generation: int) -> Provider | None:
    rank, size = int(config["rank"]), int(config["size"])
    address, path = str(config["addr"]), str(config["rendezvous_file"])
    if rank == UNKNOWN and size == UNKNOWN:
        if address or path:
            name = "AIACC_ADDR" if address else "AIACC_RENDEZVOUS_FILE"
            raise BootstrapError(
                f"[bootstrap] {name} is set without AIACC_RANK and AIACC_SIZE (expected all three);"
                f" set them too, or unset {name}"
            )
        return None
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
        return AloneProvider(generation)
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
