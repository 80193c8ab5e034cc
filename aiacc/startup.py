"""Brings the runtime up: finds the ranks, agrees with them on what to run, connects the core."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from aiacc import _core, log, mpi_library, siblings
from aiacc.autotune import tuner
from aiacc.bootstrap import (
    Contribution,
    JobPlan,
    Provider,
    agree,
    host_id,
    new_token,
    select_provider,
)
from aiacc.bootstrap.interfaces import listened_at, observe
from aiacc.bootstrap.job_plan import (
    GPU_LANES,
    MPI_ENGINES,
    default_lanes,
    warning_about_commands,
)
from aiacc.bootstrap.look import settle
from aiacc.bootstrap.mpi_start import meet_in_mpi
from aiacc.bootstrap.processes import fill_standard_descriptors, lack_of_addresses
from aiacc.bootstrap.provider import AloneProvider, command_line
from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.bootstrap.reach import Presence
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.bootstrap.selection import told, told_by
from aiacc.config import LauncherEnvironment, launcher_environment, own_variables
from aiacc.exceptions import BootstrapError, CollectiveError
from aiacc.unknown_variables import warning_about


def start(provider: Provider | None = None) -> JobPlan:
    """Start the runtime of this process, by the plan that is returned: the same on all ranks.

    Collective: every rank, equally often.
    Blocks: until all ranks have come, at most AIACC_CONNECT_TIMEOUT_S.

    Args:
        provider: How the ranks find each other; None: as the environment says.

    Raises:
        ValueError: A variable of the environment does not parse.
        BootstrapError: The ranks could not find each other, or do not fit together.
        CollectiveError: The ranks could not connect. Nothing is left open.
    """
    fill_standard_descriptors()
    environment = launcher_environment()
    unknown = warning_about(own_variables(), [name for name, *_ in _core.env_table()])
    chosen = provider is None
    try:
        config = _core.config()
        log.follow_level()
        mine = told(environment, config)
        problem = siblings.error_of_child(mine, chosen=chosen)
        if isinstance(provider, StoreProvider) and provider.is_of(environment.torchrun):
            problem = siblings.error_of_child(
                told_by(environment.torchrun), chosen=True, alone=siblings.ALONE_IN_TORCH
            )
        if problem:
            raise BootstrapError(problem)
        if provider is None:
            provider = select_provider(environment, config)
    except (BootstrapError, ValueError) as error:
        if not unknown:
            raise
        raise type(error)(f"{error}. {unknown}") from error
    log.follow_level(provider.rank)
    if chosen and isinstance(provider, AloneProvider) and not provider.told:
        alone = siblings.warning_about_siblings()
        if alone:
            warnings.warn(alone, stacklevel=4)
    if unknown and provider.rank == 0:
        warnings.warn(unknown, stacklevel=4)
    mpi = environment.mpi
    if mpi is not None and (mpi.rank, mpi.size) != (provider.rank, provider.size):
        environment = dataclasses.replace(environment, mpi=None)  # an MPI of another job
    listener: _core.Listener | None = None
    presence = Presence()
    try:
        if provider.size > 1:
            _core.raise_descriptor_limit()  # before rank 0 has a connection to every rank
            presence = observe(provider.meeting_host, str(config["iface"]))
            # Without a chosen interface the way may be any, loopback too.
            listener = _core.Listener(listened_at(presence) if config["iface"] else [])
            presence = dataclasses.replace(presence, port=listener.port)
        plan = _negotiate(provider, environment, presence)
        topology = plan.topologies[provider.rank]
        addresses: tuple[str, ...] = ()
        if plan.reach is not None:
            addresses = plan.reach.seen_by(provider.rank)
            _core.log_info(f"[bootstrap] {plan.reach.explanation(provider.rank)}")
        _core.init(
            rank=provider.rank,
            size=provider.size,
            local_rank=topology.local_rank,
            local_size=topology.local_size,
            cross_rank=topology.cross_rank,
            cross_size=topology.cross_size,
            engine=plan.engine,
            gpu_engine=plan.gpu_engine,
            gpu_lanes=plan.gpu_lanes,
            gpu_capability=plan.gpu_capability,
            nccl_in_use=_nccl_in_use(),
            lanes=plan.lanes,
            unit_bytes=plan.unit_bytes,
            token=plan.token,
            epoch=plan.epoch,
            addresses=addresses,
            host_of=plan.host_of,
            listener=listener,
        )
        if provider.rank == 0:
            unit_bytes = int(_core.stats()["unit_bytes"])
            _core.log_info(f"[bootstrap] {plan.summary(_core.__version__, unit_bytes, _nccl())}")
        if plan.engine_reason and provider.rank == 0:
            _core.log_warning(
                f"[bootstrap] tensors travel by {plan.engine}, not by mpi: {plan.engine_reason}"
            )
        if plan.gpu_engine_reason and provider.rank == 0:
            _core.log_info(f"[bootstrap] tensors on GPUs are staged: {plan.gpu_engine_reason}")
        if isinstance(provider, RendezvousProvider):
            provider.keep_seat()
        siblings.be_rank(mine)
        if config["autotune"]:
            tuner.start(provider.rank, plan.lanes)
        return plan
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    finally:
        provider.close()


def _negotiate(provider: Provider, environment: LauncherEnvironment, presence: Presence) -> JobPlan:
    """Exchange what every rank has, and decide what the job runs."""
    timeout_s = float(_core.config()["connect_timeout_s"])
    row = _contribution(provider, environment, presence)
    reserve, problem = _reserve_threads(row)
    payload = dataclasses.replace(row, threads_problem=problem).encode()
    try:
        rows = provider.all_gather(payload, timeout_s=timeout_s)
    finally:
        if reserve is not None:
            reserve.release()
    table = [Contribution.decode(row) for row in rows]
    plan = agree(table)
    if plan.reach is not None:
        found = [row.presence for row in table], [row.host for row in table]
        reach = settle(provider, *found, timeout_s=timeout_s)
        plan = dataclasses.replace(plan, reach=reach)
    if isinstance(provider, RendezvousProvider) and not provider.has_token:
        commands = warning_about_commands(table, provider.rank)
        if commands:
            warnings.warn(commands, stacklevel=5)
    # Only now is it certain that every rank has an MPI library, so that MPI_Init cannot wait for
    # a rank that will not come.
    return meet_in_mpi(
        provider, plan, table, timeout_s=timeout_s, mpirun=environment.mpi is not None
    )


def _contribution(
    provider: Provider, environment: LauncherEnvironment, presence: Presence
) -> Contribution:
    config = _core.config()
    engines = {name: "" if viable else detail for name, viable, detail in _core.engines()}
    mpi = environment.mpi
    # Looking for MPI takes time and loads libraries: only for those that will use it.
    fabrics = mpi_library.fabrics()
    useful = mpi is not None and mpi.local_size != provider.size and bool(fabrics)
    if useful or config["engine"] in MPI_ENGINES or config["gpu_engine"] in MPI_ENGINES:
        launcher = mpi.flavour if mpi is not None else None
        problem = mpi_library.load(
            str(config["mpi_library"]), launcher
        ) or mpi_library.lack_of_memory(mpi, _most_lanes(config))
        engines.update(dict.fromkeys(MPI_ENGINES, problem))
    gpus, nccl_host, nccl_shares_gpus, gpu_capability = (
        _core.nccl_gpus() if engines.get("nccl") == "" else ([], "", False, 0)
    )
    return Contribution(
        rank=provider.rank,
        size=provider.size,
        host=host_id(),
        presence=presence,
        engine=str(config["engine"]),
        gpu_engine=str(config["gpu_engine"]),
        gpu_lanes=int(config["gpu_lanes"]),
        gpu_lanes_problem=_core.nccl_lanes_problem(
            int(config["gpu_lanes"]) or GPU_LANES, _nccl_in_use()
        ),
        engines=engines,
        gpus=gpus,
        nccl_host=nccl_host,
        nccl_shares_gpus=nccl_shares_gpus,
        gpu_capability=gpu_capability,
        lanes=int(config["lanes"]),
        unit_bytes=int(config["unit_bytes"]),
        version=_core.__version__,
        launcher=provider.name,
        generation=provider.generation,
        local_rank=provider.local_rank,
        local_size=provider.local_size,
        fabrics=fabrics,
        token=new_token(),
        command=command_line(),
        equal={
            "AIACC_CACHE_CAPACITY": config["cache_capacity"],
            "AIACC_AUTOTUNE": config["autotune"],
            "AIACC_PROFILE": config["profile"],
            "AIACC_GPU_ALGORITHM": config["gpu_algorithm"],
            "AIACC_GPU_UNIT_BYTES": config["gpu_unit_bytes"],
            # It decides from which memory a tensor travels, which NCCL wants alike on all ranks.
            "AIACC_CHECK_FINITE": config["check_finite"],
            # The shortest would judge all: a rank that another one may stop for longer, a unit.
            "AIACC_PEER_TIMEOUT_S": config["peer_timeout_s"],
        },
    )


def _nccl() -> str:
    """Version of NCCL, "" without one that can be used."""
    return next((text for name, viable, text in _core.engines() if name == "nccl" and viable), "")


def _most_lanes(config: Mapping[str, Any]) -> int:
    """Lanes of this job, before it is known on how many hosts it is."""
    return int(config["lanes"]) or default_lanes(2, tuned=bool(config["autotune"]))


def _reserve_threads(row: Contribution) -> tuple[_core.ThreadReserve | None, str]:
    """Room for the core's threads, and why there is none, or "".

    Kept until every rank has its own: the ranks of a container have one limit. A rank that found
    none later, inside MPI, could not tell those that wait for it there.
    """
    if row.size == 1:
        return None, ""
    lanes = _most_lanes(_core.config())
    own = 3  # loop, heartbeats, express lane
    mpi = 3 if row.engines.get("mpi") == "" else 0  # its own, and ours for progress and a call
    count = lanes + own + mpi
    try:
        return _core.ThreadReserve(count), ""
    except CollectiveError as error:
        lack = lack_of_addresses(count)  # for which the system has the same number of an error
        return None, f"{str(error).partition('; ')[0]}; {lack}" if lack else str(error)


def _nccl_in_use() -> bool:
    """Whether torch.distributed may have made NCCL communicators in this process."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_backend() not in ("gloo", "mpi")
    )
