"""Bus bandwidth between the virtual hosts over aiacc's lanes, against what the caps allow.

python -m bench.network.allreduce        # writes bench/results/network_allreduce.json
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from aiacc.run.netcheck import bus_mbit
from bench import machine
from bench.network import launch, runs
from bench.network.bed import Bed, BedError, bed_for
from bench.network.plan import Spec

RESULTS = machine.ROOT / "bench" / "results" / "network_allreduce.json"
#: Share of the smaller cap that the median has to reach, by engine.
BARS = {"tcp": 0.93, "mpi": 0.85, "hierarchical": 0.93, "hierarchical-mpi": 0.93}
LAUNCHERS = {
    "tcp": "explicit",
    "mpi": "mpirun",
    "hierarchical": "explicit",
    "hierarchical-mpi": "mpirun",
}
#: Those that are measured unless asked otherwise.
FLAT = ("tcp", "mpi")

_MIB = 1 << 20
#: A flow that has carried as much of the tensors carried units of them.
_LEAST_SHARE = 0.01


def limit_mbit(spec: Spec, lanes: int, columns: int = 1) -> float:
    """What K lanes may carry between two hosts, in Mbit/s, headers included. Pure.

    If the bed has a slow flow, it is one of them: at best the lanes share the work by their rates.

    Args:
        spec: The bed.
        lanes: Lanes of a rank.
        columns: Ranks of a host whose lanes leave it.
    """
    flows = lanes * columns - 1 + (spec.slow or 1)
    return min(spec.flow_mbit * flows or float("inf"), spec.nic_mbit or float("inf"))


def columns_of(engine: str, per_host: int) -> int:
    """Ranks of a host that send to other hosts, all at a time. Pure."""
    return per_host if engine.startswith("hierarchical") else 1


def seconds_of(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """One sample per iteration: from the arrival of the last rank to the departure of the last."""
    starts = zip(*(rank["starts"] for rank in ranks), strict=True)
    ends = zip(*(rank["ends"] for rank in ranks), strict=True)
    return [(max(end) - max(start)) / 1e9 for start, end in zip(starts, ends, strict=True)]


def measure(
    bed: Bed,
    engine: str,
    per_host: int,
    lanes: int,
    compression: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Run one job and return its row. Raises BedError if it fails."""
    bed.reset()
    tensor_bytes = options.mib * _MIB
    hosts = bed.spec.hosts
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        command = [sys.executable, "-m", "bench.network.allreduce_worker", "--out", folder]
        command += ["--bytes", str(tensor_bytes), "--iterations", str(options.iterations)]
        command += ["--compression", compression]
        variables = dict(text.split("=", 1) for text in options.env)
        code = launch.run(
            bed,
            LAUNCHERS[engine],
            per_host,
            command,
            variables=variables | {"AIACC_ENGINE": engine, "AIACC_LANES": str(lanes)},
            timeout_s=options.timeout,
        )
        if code != 0:
            raise BedError(
                f"{engine}, {hosts} hosts of {per_host} ranks, {lanes} lanes: exit code {code}"
            )
        files = [Path(folder) / f"rank{rank}.json" for rank in range(hosts * per_host)]
        ranks = [json.loads(file.read_text()) for file in files]
    seconds = seconds_of(ranks)
    wire_bytes = tensor_bytes // (1 if compression == "none" else 2)
    # The warm-up counts for the flows: every host sends the same bytes as on the bus, if it has one
    # rank, or a hierarchy. A flat ring sends more, which its rate does not count.
    sent = wire_bytes * (1 + options.iterations) * 2 * (hosts - 1) / hosts
    rate = bus_mbit(wire_bytes, hosts, median(seconds))
    limit = limit_mbit(bed.spec, lanes, columns_of(engine, per_host))
    flat_of_many = per_host > 1 and columns_of(engine, per_host) == 1
    row = {
        "engine": engine,
        "hosts": hosts,
        "per_host": per_host,
        "lanes": lanes,
        "compression": compression,
        "bed": asdict(bed.spec),
        "variables": variables,
        "busbw_mbit": round(rate, 1),
        "limit_mbit": limit,
        "share": round(rate / limit, 4),
        "bar": None if bed.spec.slow or bed.spec.relayed or flat_of_many else BARS[engine],
        # Of all ranks of a host, as each of them sees them.
        "data_flows": [_data_flows(rank["connections"], sent) for rank in ranks[::per_host]],
        "shaped_flows": [_shaped(bed, host, sent) for host in range(hosts)] if bed.maps else None,
        "cpu_ms": round(sum(sum(rank["cpu_ns"]) for rank in ranks) / options.iterations / 1e6, 1),
        "seconds": [round(value, 5) for value in seconds],
        "load": machine.load(),
        "stats": ranks[0]["stats"],
    }
    if {rank["engine"] for rank in ranks} != {engine} or {rank["lanes"] for rank in ranks} != {
        lanes
    }:
        raise BedError(f"the job ran another engine or other lanes than {engine}, {lanes}")
    return row


def promised(engine: str, hosts: int, per_host: int, lanes: int) -> int | None:
    """Data flows on which each host sends, or None if the engine promises none exactly."""
    columns = columns_of(engine, per_host)
    if columns == per_host and (hosts == 2 or engine in ("tcp", "hierarchical")):
        return lanes * columns
    return None


def main() -> int:
    """Measure all combinations, write the file; 1 if a bar is missed."""
    options = _options()
    run: dict[str, Any] = {
        **runs.begun(),
        "command": runs.command("bench.network.allreduce", sys.argv[1:]),
        "tensor_bytes": options.mib * _MIB,
        "rows": [],
    }
    spec = Spec(
        options.name,
        flow_mbit=options.flow_mbit,
        nic_mbit=options.nic_mbit,
        congestion=options.congestion,
        delay_ms=options.delay_ms,
        loss=options.loss,
    )
    print(
        "| engine | hosts x ranks | lanes | limit | bus bandwidth | share | bar | flows of a host |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    missed = False
    try:
        for hosts in options.hosts:
            jobs = [(replace(spec, hosts=hosts), lanes) for lanes in options.lanes]
            jobs += [(replace(spec, hosts=hosts, slow=0.25), lanes) for lanes in options.slow_lanes]
            for bed_spec, lanes in jobs:
                for engine in options.engine:
                    for per_host, compression in product(options.per_host, options.compression):
                        with bed_for(bed_spec) as bed:
                            row = measure(bed, engine, per_host, lanes, compression, options)
                        run["rows"].append(row)
                        missed = not _judge(row) or missed
    except BedError as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    finally:
        if run["rows"]:
            runs.save(options.json, [*runs.kept(options.json, options.add), run])
    return 1 if missed else 0


def _judge(row: dict[str, Any]) -> bool:
    """Print a row; whether it reaches its bar and has the flows that the engine promises."""
    engine, hosts, lanes = row["engine"], row["hosts"], row["lanes"]
    flows = row["data_flows"]
    reached = row["bar"] is None or row["share"] >= row["bar"]
    wanted = promised(engine, hosts, row["per_host"], lanes)
    right = row["shaped_flows"] in (None, flows) and (wanted is None or set(flows) == {wanted})
    slow = f", one at {row['bed']['slow']:g}" if row["bed"]["slow"] else ""
    form = "" if row["compression"] == "none" else f", {row['compression']}"
    print(
        f"| {engine}{form} | {hosts} x {row['per_host']} | {lanes}{slow} | {row['limit_mbit']:g} "
        f"| {row['busbw_mbit']:g} "
        f"| {row['share']:.3f} | {row['bar'] or ''}{'' if reached else ' missed'} "
        f"| {', '.join(map(str, sorted(set(flows))))}{'' if right else ' unexpected'} |",
        flush=True,
    )
    return reached and right


def _data_flows(connections: Sequence[dict[str, Any]], sent: float) -> int:
    return sum(found["sent_bytes"] >= sent * _LEAST_SHARE for found in connections)


def _shaped(bed: Bed, host: int, sent: float) -> int:
    return sum(flow.sent_bytes >= sent * _LEAST_SHARE for flow in bed.flows(host))


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",") if number]

    parser = argparse.ArgumentParser(
        prog="python -m bench.network.allreduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument("--add", action="store_true", help="keep the runs that the file has")
    parser.add_argument("--name", default="bandw", help="of the bed (%(default)s)")
    parser.add_argument("--engine", type=lambda text: text.split(","), default=list(FLAT))
    parser.add_argument("--hosts", type=numbers, default=[2, 4, 8], metavar="N,N")
    parser.add_argument(
        "--per-host", type=numbers, default=[1], metavar="N,N", help="ranks (%(default)s)"
    )
    parser.add_argument("--lanes", type=numbers, default=[1, 2, 4, 8], metavar="K,K")
    parser.add_argument(
        "--slow-lanes", type=numbers, default=[4], metavar="K,K", help="with one flow at a quarter"
    )
    parser.add_argument(
        "--compression",
        type=lambda text: text.split(","),
        default=["none"],
        metavar="FORM,FORM",
        help="on the wire: none, fp16 or bf16 (none); rates count the bytes sent",
    )
    parser.add_argument("--mib", type=int, default=64, help="size of the tensor (%(default)s)")
    parser.add_argument("--iterations", type=int, default=5, help="of each job (%(default)s)")
    for name, metavar in (
        *(("flow_mbit", "MBIT"), ("nic_mbit", "MBIT")),
        *(("delay_ms", "MS"), ("loss", "FRACTION")),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=float, default=getattr(Spec, name), metavar=metavar
        )
    parser.add_argument("--congestion", default="cubic", help="TCP's (%(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per job (%(default)s)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all")
    options = parser.parse_args()
    for engine in options.engine:
        if engine not in LAUNCHERS:
            parser.error(f"engine {engine!r} (expected some of {', '.join(LAUNCHERS)})")
    return options


if __name__ == "__main__":
    sys.exit(main())
