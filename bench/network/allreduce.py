"""Row network.allreduce: bus bandwidth between virtual hosts, against what the caps allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from aiacc.run.netcheck import bus_mbit
from bench import plots
from bench import tables as markdown
from bench.bed import BedError
from bench.bed.bed import Bed, bed_for
from bench.bed.plan import Spec
from bench.job import run_on
from bench.record import Run, samples
from bench.turns import Contender, by_name, gathered, take_turns

#: The congestion control of most systems, whatever this machine's default.
CONGESTION = "cubic"
LANES = (1, 2, 4, 8)
ENGINES = ("tcp", "mpi")
#: Hosts, and what is special: one of four flows at a quarter of the cap.
CELLS = ("2", "4", "8", "2:slow", "4:slow", "8:slow")
_ITERATIONS, _ROUNDS = 5, 2
#: A flow that has carried as much of the tensors carried units of them.
_LEAST_SHARE = 0.01
#: Period of the inputs, so that data which moved to a wrong offset is noticed.
_PERIOD = 1021


@dataclass(frozen=True)
class Way:
    """One way to reduce; its key in results is ENGINE:LANES:UNIT:FORM, without empty ends.

    Attributes:
        engine: AIACC_ENGINE.
        lanes: AIACC_LANES.
        unit: AIACC_UNIT_BYTES, "" for the default.
    """

    engine: str
    lanes: int
    unit: str = ""

    @classmethod
    def of(cls, key: str) -> Way:
        """That of a key."""
        engine, lanes, *others = key.split(":")
        return cls(engine, int(lanes), *others)

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the ranks."""
        unit = {"AIACC_UNIT_BYTES": self.unit} if self.unit else {}
        return {"AIACC_ENGINE": self.engine, "AIACC_LANES": str(self.lanes), **unit}

    def columns(self, per_host: int) -> int:
        """Ranks of a host that send to other hosts, all at a time."""
        return per_host if self.engine.startswith("hierarchical") else 1

    def limit_mbit(self, bed: Mapping[str, Any], per_host: int = 1) -> float:
        """What the lanes may carry between two hosts of a bed, headers included.

        If it has a slow flow, it is one of them: at best the lanes share the work by their rates.
        """
        flows = self.lanes * self.columns(per_host) - 1 + (bed["slow"] or 1)
        return min(bed["flow_mbit"] * flows or float("inf"), bed["nic_mbit"] or float("inf"))

    def promised(self, hosts: int, per_host: int) -> int | None:
        """Data flows on which each host sends, or None if the engine promises none exactly."""
        columns = self.columns(per_host)
        if columns == per_host and (hosts == 2 or "mpi" not in self.engine):
            return self.lanes * columns
        return None


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """All-reduces over every number of lanes, on a bed with one rank per host."""
    hosts, _, special = cell.partition(":")
    slow = 0.25 if special == "slow" else 0
    keys = [f"{one}:{lanes}" for one, lanes in product(ENGINES, (4,) if slow else LANES)]
    return measure_on(Spec("bandw", int(hosts), 250, 1000, slow, CONGESTION), keys, rounds)


def measure_on(
    spec: Spec, keys: Iterable[str], rounds: int | None, *, per_host: int = 1, mib: int = 64
) -> dict[str, Any]:
    """What is kept of all ways on one bed; each job has several samples."""
    with bed_for(spec) as bed:
        found = by_name(keys, rounds or _ROUNDS, lambda key: _job(bed, key, per_host, mib << 20))
    timed = gathered([ranks for jobs in found.values() for ranks, _ in jobs])
    return {
        "title": f"{spec.hosts} hosts; {spec.caps}",
        "unit": "s",
        "samples": timed["samples"],
        "cpu_s": timed["cpu"],
        "flows": {key: jobs[-1][1] for key, jobs in found.items()},
        "bed": asdict(spec),
        "per_host": per_host,
        "tensor_bytes": mib << 20,
        "wrong": [
            f"{key}: {flows} flows of the hosts carried data (expected {wanted} of each)"
            for key, jobs in found.items()
            if (wanted := Way.of(key).promised(spec.hosts, per_host)) is not None
            for _, flows in jobs
            if {*flows} - {wanted}
        ],
    }


def _job(bed: Bed, key: str, per_host: int, tensor_bytes: int) -> tuple[list[Any], list[int]]:
    """Spans of all ranks, and the flows of each host that carried data."""
    way, hosts = Way.of(key), bed.spec.hosts
    ranks = run_on(
        bed,
        "bench.network.allreduce:run",
        {"key": key, "bytes": tensor_bytes, "iterations": _ITERATIONS},
        per_host=per_host,
        launcher="mpirun" if "mpi" in way.engine else "explicit",
        variables=way.variables,
    )
    if any((rank.pop("engine"), rank.pop("lanes")) != (way.engine, way.lanes) for rank in ranks):
        raise BedError(f"the job ran another engine or other lanes than {way}")
    # The warm-up counts for the flows: every host sends the same bytes as on the bus, if it has one
    # rank, or a hierarchy. A flat ring sends more, which its rate does not count.
    sent = tensor_bytes * (1 + _ITERATIONS) * 2 * (hosts - 1) / hosts
    flows = [bed.flows(host) for host in range(hosts)] if bed.spec.flow_mbit else []
    return ranks, [sum(one.sent_bytes >= sent * _LEAST_SHARE for one in host) for host in flows]


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a rank: all-reduce a tensor several times; spans by key, and what the job ran."""
    import torch

    import aiacc.torch as hvd
    from aiacc import _core

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    pattern = np.resize(np.arange(_PERIOD, dtype=np.float32), task["bytes"] // 4)
    tensor = np.empty_like(pattern)
    shared = torch.from_numpy(tensor)

    def check() -> None:
        np.subtract(tensor, size * (size - 1) // 2, out=tensor)
        np.divide(tensor, size, out=tensor)
        if not np.array_equal(tensor, pattern):
            raise AssertionError("wrong result")

    way = Contender(
        task["key"],
        lambda: hvd.allreduce_(shared, op=hvd.Sum, name="tensor"),
        prepare=lambda: np.add(pattern, rank, out=tensor),
        finish=hvd.barrier,  # the first one's check takes no core from the last one's all-reduce
        check=check,
    )
    spans = take_turns([way], task["iterations"], hvd.barrier, warm_up=1)
    found = {**spans, "engine": _core.engine(), "lanes": _core.lanes()}
    hvd.barrier()
    hvd.shutdown()
    return found


def rate_mbit(run: Run, key: str) -> float:
    """Bus bandwidth by the median of all samples."""
    return bus_mbit(run["tensor_bytes"], run["bed"]["hosts"], median(samples(run, key)))


def rate(run: Run, key: str) -> str:
    """Bus bandwidth, and the share of what the caps allow; empty if it was not measured."""
    if key not in run["samples"]:
        return ""
    limit = Way.of(key).limit_mbit(run["bed"], run["per_host"])
    return f"{rate_mbit(run, key):.0f} Mbit/s, {rate_mbit(run, key) / limit:.3f}"


def lanes_text(lanes: int) -> str:
    """A number of lanes."""
    return f"{lanes} lane{'s' * (lanes > 1)}"


def tables(runs: Sequence[Run]) -> str:
    """A line for each engine and bed, a column for each number of lanes."""
    lines = []
    for engine, run in product(ENGINES, runs):
        rates = [rate(run, f"{engine}:{lanes}") for lanes in LANES]
        if any(rates):
            slow = f"; one flow at {run['bed']['slow']:g} of it" if run["bed"]["slow"] else ""
            lines.append([engine, run["title"] + slow, *rates])
    return markdown.table(["engine", "bed", *map(lanes_text, LANES)], lines)


def plot(runs: Sequence[Run]) -> Any:
    """Bus bandwidth over lanes, a curve for each engine and number of hosts, and the limit."""
    figure, (axis,) = plots.panels(1)
    for run, engine in product(runs, ENGINES):
        if run["cell"].isdigit():
            rates = [rate_mbit(run, f"{engine}:{lanes}") for lanes in LANES]
            axis.plot(LANES, rates, marker="o", label=f"{engine}, {run['cell']} hosts")
    limits = [Way("tcp", lanes).limit_mbit(vars(Spec())) for lanes in LANES]
    axis.plot(LANES, limits, linestyle="--", color="grey", label="caps")
    axis.set_xticks(LANES)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("lanes")
    axis.set_ylabel("bus bandwidth, Mbit/s")
    axis.legend(fontsize=7)
    return figure
