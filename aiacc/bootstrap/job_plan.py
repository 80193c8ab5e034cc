"""What the ranks agree on before the core connects: pure decisions over one table of all ranks.

Every rank contributes one `Contribution`, every rank gets all of them, and `agree` returns the same
`JobPlan` everywhere, or raises the same error.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
import secrets
import socket
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiacc.bootstrap.reach import Presence, Reach
from aiacc.bootstrap.untrusted import check_fields, read_object
from aiacc.exceptions import BootstrapError

#: Launchers under which the MPI library of every process finds the others.
MPI_LAUNCHERS = frozenset({"pmi", "pmix", "mpi"})

#: Lanes unless AIACC_LANES asks for a number. A flow of a cloud network is capped, so several
#: hosts profit from several lanes.
LANES = 4
#: The same on one host, where a second lane works while the first one waits.
LANES_ON_ONE_HOST = 2
#: The same under AIACC_AUTOTUNE, which uses the best number up to this.
TUNED_LANES = 8

#: Engines, of AIACC_ENGINE and of AIACC_GPU_ENGINE, whose bytes travel between hosts by MPI.
MPI_ENGINES = frozenset({"mpi", "hierarchical-mpi"})
#: Engines where a host has several ranks, by what is between hosts: sockets, MPI.
_HIERARCHICAL = ("hierarchical", "hierarchical-mpi")

#: Lanes of engine nccl unless AIACC_GPU_LANES asks for a number: each has a communicator, which
#: takes memory and multiprocessors of the GPU.
GPU_LANES = 2

AUTO = "auto"
TOKEN_BYTES = 16

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Contribution:
    """What one rank brings to the negotiation."""

    rank: int
    size: int
    #: Equal for two ranks exactly if they run on the same host; see `host_id`.
    host: str
    #: Where it is in the network.
    presence: Presence
    #: AIACC_ENGINE: a name, or "auto".
    engine: str
    #: AIACC_GPU_ENGINE: a name, or "auto".
    gpu_engine: str
    #: Reason why not, by the name of every engine of this rank's build; "" for a viable one.
    engines: Mapping[str, str]
    #: AIACC_LANES, 0 for automatic.
    lanes: int
    unit_bytes: int
    version: str
    #: Name of the provider that found this rank.
    launcher: str
    #: From the provider; increases with every initialisation.
    generation: int
    local_rank: int | None = None
    local_size: int | None = None
    #: Network devices of its host that this rank's MPI can drive itself, past the kernel.
    fabrics: Sequence[str] = field(default_factory=list)
    #: Random bytes; those of rank 0 become the token of the job.
    token: bytes = b""
    #: AIACC_GPU_LANES, 0 for automatic.
    gpu_lanes: int = 0
    #: Why several lanes on a GPU would not be safe on this rank; "" if they are.
    gpu_lanes_problem: str = ""
    #: GPUs that this rank sees, by names that are equal on all ranks of a host; empty: not known.
    gpus: Sequence[str] = field(default_factory=list)
    #: NCCL_HOSTID, which NCCL takes for the name of the host; "" if it is not set.
    nccl_host: str = ""
    #: Whether NCCL takes several ranks on one GPU.
    nccl_shares_gpus: bool = False
    #: Script that this rank runs, and its arguments; for a hint, as ranks may have different ones.
    command: Sequence[str] = field(default_factory=list)
    #: Why this rank has no room for the threads of the core; "" if it has.
    threads_problem: str = ""
    #: The lowest compute capability of those GPUs, before the point; 0: not known.
    gpu_capability: int = 0
    #: Other settings that only work if they are equal everywhere, by the name of their variable.
    equal: Mapping[str, Scalar] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Payload for `Provider.all_gather`."""
        fields = dataclasses.asdict(self) | {"token": base64.b64encode(self.token).decode()}
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: bytes) -> Contribution:
        """Inverse of `encode`. Raises BootstrapError for anything else."""
        try:
            fields = read_object(payload)
            fields["token"] = base64.b64decode(fields["token"])
            fields["presence"] = Presence.from_fields(fields["presence"])
            check_fields(Contribution, fields)
            contribution = Contribution(**fields)
            if not 0 <= contribution.generation < 1 << 31:
                raise ValueError(f"generation is {contribution.generation}")
            if len(contribution.token) != TOKEN_BYTES:
                raise ValueError(f"the token has {len(contribution.token)} bytes")
        except (ValueError, TypeError, KeyError) as error:
            raise BootstrapError(
                f"[bootstrap] a rank sent a table row that cannot be read ({error}); install the "
                "same aiacc on every host"
            ) from error
        return contribution


@dataclass(frozen=True)
class RankTopology:
    """Rank and size within the host, and across hosts."""

    local_rank: int
    local_size: int
    #: Position among the ranks that have the same `local_rank` on their hosts.
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class JobPlan:
    """The configuration of the job; equal on every rank."""

    engine: str
    #: Why not by MPI although mpirun started the job on a fabric, for the log; "" if there is
    #: nothing to say.
    engine_reason: str
    gpu_engine: str
    #: Why not the engine that every rank could run, for the log; "" if that was chosen.
    gpu_engine_reason: str
    gpu_lanes: int
    #: The lowest compute capability among all ranks' GPUs and the first rank that has it, so that
    #: all refuse alike what one of them cannot do; (0, 0): not known.
    gpu_capability: tuple[int, int]
    lanes: int
    unit_bytes: int
    #: By which address each rank reaches each other one; None for a single rank.
    reach: Reach | None
    #: Secret of this job and epoch.
    token: bytes
    epoch: int
    #: By rank.
    topologies: tuple[RankTopology, ...]
    #: Number of each rank's host, from 0 in the order of their lowest ranks.
    host_of: tuple[int, ...]
    #: Whether every host has the same number of ranks.
    homogeneous: bool

    def summary(self, version: str, unit_bytes: int, nccl: str) -> str:
        """What runs, in a line for the log; ``nccl`` is its version, "" without one. Pure."""
        ranks, hosts = len(self.host_of), len(set(self.host_of))
        gpus = "staged"
        if self.gpu_engine != gpus:
            gpus = f"by {self.gpu_engine} on {self.gpu_lanes} lane{'s' * (self.gpu_lanes > 1)}"
        return (
            f"aiacc {version}: {ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}, "
            f"engine {self.engine}, {self.lanes} lane{'s' * (self.lanes > 1)}, units of "
            f"{unit_bytes / (1 << 20):.3g} MiB; tensors on GPUs {gpus}, "
            f"{f'NCCL {nccl}' if nccl else 'no NCCL'}"
        )


def host_id() -> str:
    """Name of the machine this process runs on; differs between containers with own host names."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def new_token() -> bytes:
    """Random bytes for `Contribution.token`."""
    return secrets.token_bytes(TOKEN_BYTES)


def agree(table: Sequence[Contribution]) -> JobPlan:
    """Decide what the job runs.

    Pure: the same table gives the same result or error on every rank.

    Args:
        table: One row per rank, in rank order.

    Raises:
        BootstrapError: Two ranks contradict each other, or a requested engine cannot run on a
            rank; the text names ranks and values.
    """
    _check_world(table)
    for name in sorted({key for row in table for key in row.equal}):
        _check_equal(name, [row.equal.get(name, "(absent)") for row in table])
    topologies = _topologies(table)
    reach = None
    if len(table) > 1:
        reach = Reach([row.presence for row in table], [row.host for row in table])
    host_of = _hosts(table, topologies)
    engine, engine_reason = _engine(table, host_of)
    gpu_engine, gpu_engine_reason = _gpu_engine(table)
    return JobPlan(
        engine=engine,
        engine_reason=engine_reason,
        gpu_engine=gpu_engine,
        gpu_engine_reason=gpu_engine_reason,
        gpu_lanes=1 if gpu_engine == "staged" else _gpu_lanes(table),
        gpu_capability=min((row.gpu_capability, row.rank) for row in table)
        if all(row.gpu_capability for row in table)
        else (0, 0),
        lanes=table[0].lanes
        or default_lanes(max(host_of) + 1, tuned=bool(table[0].equal.get("AIACC_AUTOTUNE")))
        if len(table) > 1
        else 1,
        unit_bytes=table[0].unit_bytes,
        reach=reach,
        token=table[0].token,
        epoch=max(row.generation for row in table),
        topologies=topologies,
        host_of=host_of,
        homogeneous=len({topology.local_size for topology in topologies}) == 1,
    )


def warning_about_commands(table: Sequence[Contribution], rank: int) -> str:
    """What to say on ``rank`` about ranks that run different things, if nothing kept others out.

    "" if this rank runs what rank 0 does; on rank 0, if all do. Numbers of the ranks may differ.
    Pure.
    """
    for row in table if rank == 0 else [table[rank]]:
        difference = _difference(table[0], row)
        if difference:
            return (
                f"[bootstrap] rank 0 runs {difference[0]}, rank {row.rank} {difference[1]}: if "
                "these belong to two jobs with one AIACC_ADDR, give each job an AIACC_ADDR or an "
                "AIACC_TOKEN of its own; with an AIACC_TOKEN nothing is said"
            )
    return ""


def _difference(zero: Contribution, row: Contribution) -> tuple[str, str] | None:
    """What two ranks run, as far as it differs by more than their numbers."""
    words = itertools.zip_longest(zero.command, row.command, fillvalue="")
    for number, (mine, other) in enumerate(words):
        # Digits and what is between them, in turn.
        parts = [re.split(r"(\d+)", word) for word in (mine, other)]
        numbers = [
            {str(one.rank), *([] if one.local_rank is None else [str(one.local_rank)])}
            for one in (zero, row)
        ]
        same = len(parts[0]) == len(parts[1]) and all(
            a == b or (a in numbers[0] and b in numbers[1]) for a, b in zip(*parts, strict=True)
        )
        if not same:
            script = zero.command[0] if zero.command else "", row.command[0] if row.command else ""
            if number == 0:
                return script
            return f"{script[0]} with {mine or 'less'}", f"{script[1]} with {other or 'less'}"
    return None


def default_lanes(hosts: int, *, tuned: bool) -> int:
    """Lanes of a job that does not ask for a number; `tuned`: AIACC_AUTOTUNE chooses among them."""
    if tuned:
        return TUNED_LANES
    return LANES_ON_ONE_HOST if hosts == 1 else LANES


def _gpu_lanes(table: Sequence[Contribution]) -> int:
    requested = table[0].gpu_lanes
    if requested == 1:
        return 1
    for row in table:
        if row.gpu_lanes_problem and requested:
            raise BootstrapError(
                f"[bootstrap] AIACC_GPU_LANES={requested} on rank {row.rank}: "
                f"{row.gpu_lanes_problem}"
            )
        if row.gpu_lanes_problem:
            return 1
    return requested or GPU_LANES


def _check_world(table: Sequence[Contribution]) -> None:
    for position, row in enumerate(table):
        if row.size != len(table):
            raise BootstrapError(
                f"[bootstrap] rank {row.rank} was started with size {row.size}, but {len(table)} "
                "ranks came (expected equal); start every rank with the same size"
            )
        if row.rank != position:
            raise BootstrapError(
                f"[bootstrap] the row of rank {position} says rank {row.rank} (expected equal); "
                "give every process its own rank"
            )
        if row.threads_problem:
            raise BootstrapError(
                f"[bootstrap] rank {row.rank} has no room for its threads: {row.threads_problem}"
            )
    _check_equal("version of aiacc", [row.version for row in table])
    _check_equal("AIACC_ENGINE", [row.engine for row in table])
    _check_equal("AIACC_GPU_LANES", [row.gpu_lanes for row in table])
    _check_equal("AIACC_GPU_ENGINE", [row.gpu_engine for row in table])
    _check_equal("AIACC_LANES", [row.lanes for row in table])
    _check_equal("AIACC_UNIT_BYTES", [row.unit_bytes for row in table])


def _check_equal(name: str, values: Sequence[Scalar]) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise BootstrapError(
                f"[bootstrap] ranks disagree about {name}: {values[0]} on rank 0, {value} on rank "
                f"{rank} (expected equal); set the same on every rank"
            )


def _engine(table: Sequence[Contribution], host_of: Sequence[int]) -> tuple[str, str]:
    """Who moves tensors on hosts; why not MPI although mpirun started the job on a fabric."""
    requested = table[0].engine
    reason = ""
    if requested == AUTO:
        if len(table) == 1:
            return "local", ""
        hosts = max(host_of) + 1
        by_sockets, by_mpi = ("tcp", "mpi") if hosts == len(table) else _HIERARCHICAL
        by_mpirun = all(row.launcher in MPI_LAUNCHERS for row in table)
        on_fabric = next((row for row in table if row.fabrics), None)
        if hosts > 1 and by_mpirun and on_fabric is not None:
            without = next((row for row in table if not row.fabrics), None)
            lacking = next((row for row in table if _why_not(row, by_mpi)), None)
            if without is not None:
                reason = (
                    f"rank {without.rank} on {without.host.split('/')[0]} has no fabric that it "
                    f"may use, rank {on_fabric.rank} on {on_fabric.host.split('/')[0]} has "
                    f"{', '.join(on_fabric.fabrics)}"
                )
            elif lacking is not None:
                reason = f"rank {lacking.rank}: {_why_not(lacking, by_mpi)}"
            else:
                return by_mpi, ""
        requested = by_sockets
    _check_viable(table, requested, "AIACC_ENGINE")
    return requested, reason


def _gpu_engine(table: Sequence[Contribution]) -> tuple[str, str]:
    """Who moves tensors on CUDA devices, if the job has any; why not NCCL although it can run."""
    requested = table[0].gpu_engine
    if requested == AUTO:
        if not all(row.engines.get("nccl") == "" for row in table):
            return "staged", ""
        reason = _shared_gpu(table)
        return ("staged", reason) if reason else ("nccl", "")
    for needed in _needed_by(requested):
        _check_viable(table, needed, "AIACC_GPU_ENGINE")
    return requested, ""


def _needed_by(gpu_engine: str) -> list[str]:
    """What must be viable for it."""
    if gpu_engine == "staged":
        return []
    return ["nccl", "mpi"] if gpu_engine in MPI_ENGINES else ["nccl"]


def _shared_gpu(table: Sequence[Contribution]) -> str:
    """Why two ranks must share a GPU, which NCCL refuses; "" if they need not, or NCCL was told to.

    They must when ranks of one host, as NCCL counts hosts, are more than all GPUs that they see.
    """
    if all(row.nccl_shares_gpus for row in table):
        return ""
    hosts: dict[str, list[Contribution]] = {}
    for row in table:
        hosts.setdefault(row.nccl_host or row.host, []).append(row)
    for rows in hosts.values():
        seen = [frozenset(row.gpus) for row in rows]
        if not all(seen):
            continue  # not known
        together = frozenset().union(*seen)
        for gpus in sorted({*seen, together}, key=lambda names: (len(names), sorted(names))):
            ranks = [row.rank for row, mine in zip(rows, seen, strict=True) if mine <= gpus]
            if len(ranks) > len(gpus):
                return (
                    f"ranks {', '.join(map(str, ranks))} of host {rows[0].host.split('/')[0]} see "
                    f"{len(gpus)} GPU{'s' * (len(gpus) > 1)} together, and NCCL takes one rank for "
                    "each; start as many ranks as there are GPUs, or let them share with "
                    "NCCL_MULTI_RANK_GPU_ENABLE=1, from NCCL 2.30 on"
                )
    return ""


def _why_not(row: Contribution, engine: str) -> str:
    return row.engines.get(engine, "this build does not know it")


def _check_viable(table: Sequence[Contribution], engine: str, variable: str) -> None:
    for row in table:
        reason = _why_not(row, engine)
        if reason:
            raise BootstrapError(
                f"[bootstrap] engine {engine} cannot run on rank {row.rank}: {reason} (expected "
                f"viable on every rank); remedy that, or choose another {variable}"
            )


def _topologies(table: Sequence[Contribution]) -> tuple[RankTopology, ...]:
    if all(row.local_rank is not None and row.local_size is not None for row in table):
        local = [(row.local_rank or 0, row.local_size or 0) for row in table]
        for rank, (local_rank, local_size) in enumerate(local):
            if not 0 <= local_rank < local_size <= len(table):
                raise BootstrapError(
                    f"[bootstrap] rank {rank} was given local rank {local_rank} of {local_size} "
                    f"(expected 0 <= local rank < local size <= {len(table)}); correct "
                    "AIACC_LOCAL_RANK and AIACC_LOCAL_SIZE, or unset them"
                )
    else:
        local = _count_equal([row.host for row in table])
    cross = _count_equal([local_rank for local_rank, _ in local])
    return tuple(
        RankTopology(*in_host, *across) for in_host, across in zip(local, cross, strict=True)
    )


def _hosts(table: Sequence[Contribution], topologies: Sequence[RankTopology]) -> tuple[int, ...]:
    """Number of each rank's host.

    Names do not always tell hosts apart: a launcher may divide one machine by local ranks. A rank
    belongs to the first host of its name and size that has as many ranks already as its local rank
    says; if there is none, to a new one.
    """
    kinds: list[tuple[str, int]] = []
    taken: list[int] = []
    hosts = []
    for row, topology in zip(table, topologies, strict=True):
        kind = (row.host, topology.local_size)
        fitting = (
            number
            for number, seats in enumerate(zip(kinds, taken, strict=True))
            if seats == (kind, topology.local_rank)
        )
        host = next(fitting, len(kinds))
        if host == len(kinds):
            kinds.append(kind)
            taken.append(0)
        taken[host] += 1
        hosts.append(host)
    return tuple(hosts)


def _count_equal(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    """For each value: how many equal ones come before it, and how many there are."""
    totals = Counter(values)
    before: Counter[Hashable] = Counter()
    counts = []
    for value in values:
        counts.append((before[value], totals[value]))
        before[value] += 1
    return counts
