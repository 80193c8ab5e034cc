"""Brings the runtime up: finds the ranks, agrees with them on what to run, connects the core."""

from __future__ import annotations

import dataclasses
import sys
import warnings

from aiacc import _core, mpi_library
from aiacc.bootstrap import (
    Agreement,
    Contribution,
    Provider,
    agree,
    host_id,
    new_token,
    select_provider,
)
from aiacc.bootstrap.negotiate import GPU_LANES
from aiacc.config import LauncherEnvironment, launcher_environment
from aiacc.exceptions import BootstrapError, CollectiveError
from aiacc.tuning import tuner


def start(provider: Provider | None = None) -> bool:
    """Start the runtime of this process; whether all hosts have equally many ranks.

    Collective: every rank, equally often.
    Blocks: until all ranks have come, at most AIACC_CONNECT_TIMEOUT_S.

    Args:
        provider: How the ranks find each other; None: as the environment says.

    Raises:
        ValueError: A variable of the environment does not parse.
        BootstrapError: The ranks could not find each other, or do not fit together.
        CollectiveError: The ranks could not connect. Nothing is left open.
    """
    environment = launcher_environment()
    config = _core.config()
    if provider is None:
        provider = select_provider(environment, config)
    listener: _core.Listener | None = None
    try:
        if provider.size > 1:
            listener = _core.Listener(str(config["iface"]))
        agreement = _negotiate(provider, environment, listener.address if listener else "")
        place = agreement.places[provider.rank]
        _core.init(
            rank=provider.rank,
            size=provider.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            cross_rank=place.cross_rank,
            cross_size=place.cross_size,
            engine=agreement.engine,
            gpu_engine=agreement.gpu_engine,
            gpu_lanes=agreement.gpu_lanes,
            nccl_in_use=_nccl_in_use(),
            lanes=agreement.lanes,
            unit_bytes=agreement.unit_bytes,
            token=agreement.token,
            epoch=agreement.epoch,
            addresses=agreement.addresses,
            host_of=agreement.host_of,
            listener=listener,
        )
        if agreement.gpu_engine_reason and provider.rank == 0:
            _core.log_info(f"[bootstrap] tensors on GPUs are staged: {agreement.gpu_engine_reason}")
        if config["autotune"]:
            tuner.start(provider.rank, agreement.lanes, agreement.unit_bytes)
        return len({place.local_size for place in agreement.places}) == 1
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    finally:
        provider.close()


def _negotiate(provider: Provider, environment: LauncherEnvironment, address: str) -> Agreement:
    """Exchange what every rank has, and decide what the job runs."""
    timeout_s = float(_core.config()["connect_timeout_s"])
    payload = _contribution(provider, environment, address).encode()
    rows = provider.all_gather(payload, timeout_s=timeout_s)
    table = [Contribution.decode(row) for row in rows]
    agreement = agree(table)
    if agreement.engine != "mpi":
        return agreement
    # Only now is it certain that every rank has an MPI library, so that MPI_Init cannot wait for
    # a rank that will not come.
    reason = _start_mpi(provider, agreement, timeout_s)
    reasons = provider.all_gather(reason.encode(), timeout_s=timeout_s)
    failed = {number: reason.decode() for number, reason in enumerate(reasons) if reason}
    if not failed:
        return agreement
    if table[0].engine == "mpi":
        number, reason = min(failed.items())
        raise BootstrapError(
            f"[bootstrap] engine mpi cannot run on rank {number}: {reason} (expected viable on "
            "every rank); remedy that, or choose another AIACC_ENGINE"
        )
    return agree([_without_mpi(row, failed.get(row.rank)) for row in table])


def _contribution(
    provider: Provider, environment: LauncherEnvironment, address: str
) -> Contribution:
    config = _core.config()
    engines = {name: "" if viable else detail for name, viable, detail in _core.engines()}
    # Looking for MPI takes time and loads libraries; other jobs have no use for it.
    if environment.mpi is not None or config["engine"] == "mpi":
        engines["mpi"] = mpi_library.load(str(config["mpi_library"]))
    gpus, nccl_host, nccl_shares_gpus = (
        _core.nccl_gpus() if engines.get("nccl") == "" else ([], "", False)
    )
    return Contribution(
        rank=provider.rank,
        size=provider.size,
        host=host_id(),
        address=address,
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
        lanes=int(config["lanes"]),
        unit_bytes=int(config["unit_bytes"]),
        version=_core.__version__,
        launcher=provider.name,
        generation=provider.generation,
        local_rank=provider.local_rank,
        local_size=provider.local_size,
        token=new_token(),
        equal={
            "AIACC_CACHE_CAPACITY": config["cache_capacity"],
            "AIACC_AUTOTUNE": config["autotune"],
            "AIACC_GPU_ALGORITHM": config["gpu_algorithm"],
            # It decides from which memory a tensor travels, which NCCL wants alike on all ranks.
            "AIACC_CHECK_FINITE": config["check_finite"],
        },
    )


def _nccl_in_use() -> bool:
    """Whether torch.distributed may have made NCCL communicators in this process."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_backend() not in ("gloo", "mpi")
    )


def _start_mpi(provider: Provider, agreement: Agreement, timeout_s: float) -> str:
    """Initialise MPI. "" or why it is of no use to this job."""
    one_host = all(place.cross_size == 1 for place in agreement.places)
    try:
        rank, size, version = _core.mpi_initialize(0 if one_host else agreement.lanes, timeout_s)
    except CollectiveError as error:
        return str(error)
    if (rank, size) != (provider.rank, provider.size):
        return (
            f"{version.strip()} says rank {rank} of {size}, the job says rank {provider.rank} of "
            f"{provider.size}; set AIACC_MPI_LIBRARY to the library of the mpirun that is used"
        )
    hosts = max(place.cross_size for place in agreement.places)
    warning = mpi_library.warning_about_flows(version, hosts, agreement.lanes)
    if rank == 0 and warning is not None:
        warnings.warn(warning, stacklevel=4)
    return ""


def _without_mpi(row: Contribution, reason: str | None) -> Contribution:
    if reason is None:
        return row
    return dataclasses.replace(row, engines={**row.engines, "mpi": reason})
