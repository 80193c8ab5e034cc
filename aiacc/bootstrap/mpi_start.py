"""The ranks of a job meet in MPI, if it is to carry tensors between their hosts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

from aiacc import _core, mpi_library
from aiacc.bootstrap import Contribution, JobPlan, Provider, agree
from aiacc.bootstrap.job_plan import MPI_ENGINES
from aiacc.exceptions import BootstrapError, CollectiveError

#: Reasons that an error tells. More say the same, of each rank of a large job.
_MOST_REASONS = 3


def meet_in_mpi(
    provider: Provider,
    plan: JobPlan,
    table: Sequence[Contribution],
    *,
    timeout_s: float,
    mpirun: bool,
) -> JobPlan:
    """Start MPI, if the plan wants it; the plan, or another one if MPI is of no use to some rank.

    Collective, blocks. Every rank must have an MPI library: MPI_Init waits for all.

    Args:
        provider: How the ranks tell each other.
        plan: What follows from the table.
        table: One row per rank, in rank order.
        timeout_s: For every step.
        mpirun: Whether one has started this process.

    Raises:
        BootstrapError: On every rank, if one cannot run an engine that was asked for.
    """
    by_mpi = plan.engine in MPI_ENGINES
    if not by_mpi and plan.gpu_engine not in MPI_ENGINES:
        return plan
    on_fabric = all(row.fabrics for row in table)
    # Memory is taken when every rank knows that all have met in MPI. An engine for GPUs takes its
    # own later; that all ranks come to this step tells it apart from that of an earlier job.
    steps: tuple[Callable[[], str], ...] = (
        lambda: _start(provider, plan, timeout_s, mpirun=mpirun, on_fabric=on_fabric),
        lambda: _reserve(plan.lanes if by_mpi else 0),
    )
    for step in steps:
        mine = step()
        # The others may wait in MPI for a rank that has failed here, until their own limit.
        patience_s = 2 * timeout_s if mine else timeout_s
        reasons = provider.all_gather(mine.encode(), timeout_s=patience_s)
        failed = {
            number: reason.decode(errors="replace")
            for number, reason in enumerate(reasons)
            if reason
        }
        for variable, asked in (
            ("AIACC_ENGINE", table[0].engine),
            ("AIACC_GPU_ENGINE", table[0].gpu_engine),
        ):
            if failed and asked in MPI_ENGINES:
                raise BootstrapError(
                    f"[bootstrap] engine {asked} cannot run on {_by_rank(failed)} (expected "
                    f"viable on every rank); remedy that, or choose another {variable}"
                )
        if failed:
            without = agree([_without_mpi(row, failed.get(row.rank)) for row in table])
            return dataclasses.replace(without, reach=plan.reach)
    return plan


def _start(
    provider: Provider, plan: JobPlan, timeout_s: float, *, mpirun: bool, on_fabric: bool
) -> str:
    """Initialise MPI. "" or why it is of no use to this job."""
    one_host = all(topology.cross_size == 1 for topology in plan.topologies)
    try:
        rank, size, version = _core.mpi_initialize(0 if one_host else plan.lanes, timeout_s)
    except CollectiveError as error:
        return str(error)
    if (rank, size) != (provider.rank, provider.size):
        remedy = (
            "set AIACC_MPI_LIBRARY to the library of the mpirun that is used"
            if mpirun
            else "no mpirun started this process: start the job by mpirun, or by `aiaccrun --mpi`"
        )
        return (
            f"{version.strip()} says rank {rank} of {size}, the job says rank {provider.rank} of "
            f"{provider.size}; {remedy}"
        )
    hosts = max(topology.cross_size for topology in plan.topologies)
    warning = None if on_fabric else mpi_library.warning_about_flows(version, hosts, plan.lanes)
    if rank == 0 and warning is not None:
        warnings.warn(warning, stacklevel=5)
    return ""


def _reserve(lanes: int) -> str:
    """Take the memory that MPI's lanes need. "" or why there is none."""
    try:
        _core.mpi_reserve(lanes)
    except CollectiveError as error:
        return str(error)
    return ""


def _by_rank(reasons: Mapping[int, str]) -> str:
    """Each reason once, with the lowest rank that gave it: a rank may only have missed another."""
    first: dict[str, int] = {}
    for number, reason in sorted(reasons.items()):
        first.setdefault(reason, number)
    said = [f"rank {number}: {reason}" for reason, number in first.items()]
    more = len(said) - _MOST_REASONS
    return "; ".join(said[:_MOST_REASONS]) + (f"; and {more} more ranks" if more > 0 else "")


def _without_mpi(row: Contribution, reason: str | None) -> Contribution:
    if reason is None:
        return row
    return dataclasses.replace(row, engines={**row.engines, **dict.fromkeys(MPI_ENGINES, reason)})
