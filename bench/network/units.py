"""Which size of units suits which delay: all-reduces of a model's gradients, all at a time.

python -m bench.network.units        # writes bench/results/network_units.json
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import aiacc.array as hvd
from aiacc import _core
from bench import machine
from bench.network import launch, runs
from bench.network.bed import BedError, bed_for
from bench.network.plan import Spec
from bench.network.workloads import workload

RESULTS = machine.ROOT / "bench" / "results" / "network_units.json"
WORKLOAD = "resnet50"
UNITS_MIB = (1, 2, 4, 8, 16)
#: (Mbit/s of a host, milliseconds that a packet takes longer, probability that it is lost).
NETWORKS: tuple[tuple[float, float, float], ...] = (
    *((1000, delay_ms, 0) for delay_ms in (0, 1, 2, 3, 5, 10, 20)),
    *((300, delay_ms, 0) for delay_ms in (0, 3, 10)),
    *((1000, delay_ms, 1e-4) for delay_ms in (3, 10)),
)
_TIMEOUT_S = 600.0


def measure(mbit: float, delay_ms: float, loss: float, rounds: int) -> dict[str, Any]:
    """Run one job between four hosts with a rank each, and return its row."""
    spec = Spec("units", hosts=4, flow_mbit=0, nic_mbit=mbit, delay_ms=delay_ms, loss=loss)
    with bed_for(spec) as bed, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "bench.network.units"]
        command += ["--job", str(output), "--rounds", str(rounds)]
        code = launch.run(bed, "explicit", 1, command, timeout_s=_TIMEOUT_S)
        if code != 0:
            raise BedError(f"{mbit:g} Mbit/s, {delay_ms:g} ms: the job ended with code {code}")
        found: dict[str, Any] = json.loads(output.read_text())
    return {"bed": asdict(spec), **found, "load": machine.load()}


def units_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per network."""
    head = " | ".join(f"{mib} MiB" for mib in UNITS_MIB)
    lines = [f"| Mbit/s | delay | loss | {head} | chosen |", "| --- " * (len(UNITS_MIB) + 4) + "|"]
    for row in (row for run in found for row in run["rows"]):
        times = " | ".join(f"{median(row['seconds'][str(mib)]):.2f} s" for mib in UNITS_MIB)
        bed, chosen = row["bed"], f"{row['chosen'] >> 20} MiB"
        network = f"{bed['nic_mbit']:g} | {bed['delay_ms']:g} ms | {bed['loss']:g}"
        lines.append(f"| {network} | {times} | {chosen} |")
    return "\n".join(lines)


def _job(path: Path, rounds: int) -> None:
    """One rank: all sizes in turn, ``rounds`` times; the first rank writes seconds by size."""
    hvd.init()
    arrays = [np.ones(prod(shape[-1]), np.float32) for shape in workload(WORKLOAD).shapes]
    seconds: dict[int, list[float]] = {mib: [] for mib in UNITS_MIB}
    _settle()
    chosen = int(_core.stats()["unit_bytes"])
    for number in range(rounds + 1):  # the first one warms up
        for mib in UNITS_MIB:
            if hvd.rank() == 0:
                _core.propose_parameters(mib << 20, _core.lanes())
            _settle()
            began = time.perf_counter()
            names = map(str, range(len(arrays)))
            handles = [hvd.allreduce_async_(a, name=n) for a, n in zip(arrays, names, strict=True)]
            for handle in handles:
                hvd.synchronize(handle)
            if number > 0:
                seconds[mib].append(time.perf_counter() - began)
    if hvd.rank() == 0:
        path.write_text(json.dumps({"seconds": seconds, "chosen": chosen}))
    hvd.shutdown()


def _settle() -> None:
    """Let what was proposed take effect: a round brings it to all ranks."""
    hvd.barrier()
    hvd.barrier()


def main() -> int:
    """Measure all networks and write the file, or be a rank of a job."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.units",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of each size (%(default)s)")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        _job(options.job, options.rounds)
        return 0
    run: dict[str, Any] = {
        **runs.begun(),
        "command": runs.command("bench.network.units", sys.argv[1:]),
        "workload": WORKLOAD,
        "rows": [],
    }
    try:
        for network in NETWORKS:
            run["rows"].append(measure(*network, options.rounds))
            print(units_table([run]).splitlines()[-1], flush=True)
    except BedError as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    runs.save(options.json, [run])
    return 0


if __name__ == "__main__":
    sys.exit(main())
