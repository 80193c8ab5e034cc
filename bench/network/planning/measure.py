"""Runs the jobs of a cell: the probe, then rounds in which all contenders take turns."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiacc.planning.cost import CostModel
from aiacc.planning.network import network_of
from bench import machine
from bench.network import launch, runs
from bench.network.bed import Bed, bed_for
from bench.network.planning.cells import Cell, probe_mib, trace_of
from bench.network.planning.contenders import (
    CONTENDERS,
    LANES,
    PROBED_LANES,
    Contender,
    plans,
    prediction,
    sent,
    taking_part,
    task,
)

_PROBE_S = 1200.0


def variables(cell: Cell) -> dict[str, str]:
    """Environment of all ranks, those of the probe too."""
    return {"AIACC_ENGINE": "tcp", "AIACC_LANES": str(LANES), "AIACC_UNIT_BYTES": cell.unit}


def measure(cell: Cell, only: Sequence[str] = ()) -> dict[str, Any]:
    """Everything that a result file has of a cell.

    Blocks. Main thread only.

    Args:
        cell: What.
        only: Names of contenders, all if empty.

    Raises:
        RuntimeError: The probe failed.
    """
    work = cell.work
    trace = trace_of(work)
    load = machine.load()
    with bed_for(cell.spec) as bed, tempfile.TemporaryDirectory() as folder:
        network = _probe(bed, Path(folder) / "network.json", cell)
        cost = _cost(network)
        made = plans(trace, cost)
        for name, plan in made.items():
            print(f"{cell.name} {name}: {len(plan.buckets)} buckets, "
                  f"{plan.predicted_s:.3f} s predicted", flush=True)  # fmt: skip
        jobs = [
            one_round(bed, Path(folder), cell, chosen, made)
            for number in range(max(cell.rounds, cell.auto_rounds))
            for chosen in [
                [one for one in taking_part(cell, number) if not only or one.name in only]
            ]
        ]
    return {
        "cell": {**asdict(cell), "name": cell.name},
        "bytes": work.bytes,
        "compute_s": work.compute_s,
        "forward_s": work.forward_s,
        "trace": "modelled from the workload",
        "bed": asdict(cell.spec),
        "variables": variables(cell),
        "network": network,
        "plans": {name: prediction(plan) for name, plan in made.items()},
        "as_sent_s": sent(cell, made, trace, cost),
        "jobs": jobs,
        "load": {"before": load, "after": machine.load()},
        **runs.begun(),
    }


def probed_again(run: Mapping[str, Any]) -> dict[str, Any]:
    """``run`` with another probe of its network, and what the model says from that.

    Blocks. Main thread only.
    """
    cell = _cell(run)
    with bed_for(cell.spec) as bed, tempfile.TemporaryDirectory() as folder:
        network = _probe(bed, Path(folder) / "network.json", cell)
    return predicted_again({**run, "probed": {"network": network, **runs.begun()}})


def predicted_again(run: Mapping[str, Any]) -> dict[str, Any]:
    """``run`` with what the model says now, from its last probe, of the measured plans."""
    cell = _cell(run)
    trace = trace_of(cell.work)
    made = plans(trace, _cost(run["network"]))
    cost = _cost(run["probed"]["network"] if "probed" in run else run["network"])
    then = {name: plan["digest"] for name, plan in run["plans"].items()}
    other = {name for name, plan in made.items() if prediction(plan)["digest"] != then[name]}
    now = sent(cell, made, trace, cost)
    found = {one.name: now[one.name] for one in CONTENDERS
             if one.name in now and one.planner not in other}  # fmt: skip
    return {
        **run,
        "as_sent_s": {**run["as_sent_s"], **found},
        "predicted_at": {**machine.commit(), "all_but": sorted(other)},
    }


def _cell(run: Mapping[str, Any]) -> Cell:
    return Cell(**{name: value for name, value in run["cell"].items() if name != "name"})


def _cost(network: Mapping[str, Any]) -> CostModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.json"
        path.write_text(json.dumps(network))
        return network_of(str(path)).cost()


def _probe(bed: Bed, path: Path, cell: Cell) -> Mapping[str, Any]:
    """What operations cost between the hosts, by ``aiacc-plan probe`` on all ranks."""
    command = [sys.executable, "-m", "aiacc.run.plan", "probe", "--output", str(path)]
    command += ["--max-mib", str(probe_mib(cell.mbit)), "--lanes", str(PROBED_LANES)]
    bed.reset()
    code = launch.run(bed, "explicit", 1, command, variables=variables(cell), timeout_s=_PROBE_S)
    if code != 0:
        raise RuntimeError(f"[bench.network] aiacc-plan probe ended with code {code}")
    network: dict[str, Any] = json.loads(path.read_text())
    return network


def one_round(
    bed: Bed, folder: Path, cell: Cell, contenders: Sequence[Contender], made: Mapping[str, Any]
) -> dict[str, Any]:
    """What each contender has found in one round.

    A contender that ends the job is left out, and the others go on in another one.
    """
    found: dict[str, Any] = {}
    left = list(contenders)
    trace = trace_of(cell.work)
    while left:
        output = folder / "result.json"
        output.unlink(missing_ok=True)
        job = {
            "workload": cell.workload,
            "compute_s": cell.work.compute_s,
            "steps": cell.steps,
            "contenders": [task(one, made, trace) for one in left],
            "output": str(output),
        }
        (folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "bench.network.planning.step", str(folder / "job.json")]
        bed.reset()
        code = launch.run(
            bed, "explicit", 1, command, variables=variables(cell), timeout_s=_limit_s(cell, left)
        )
        these = json.loads(output.read_text()) if output.exists() else {}
        for one in left[: len(these)]:
            _say(cell, one, these[one.name])
        found.update(these)
        left = left[len(these) :]
        if code != 0 and left:
            found[left[0].name] = {"failed": f"the job ended with code {code}"}
            _say(cell, left[0], found[left[0].name])
            left = left[1:]
    return found


def _limit_s(cell: Cell, contenders: Sequence[Contender]) -> float:
    """Far beyond what the slowest planner needs, so that only a job that hangs is ended."""
    steps = sum(1 + one.warmup + cell.steps for one in contenders)
    return 300 + 20 * steps * max(1.0, cell.work.compute_s)


def _say(cell: Cell, contender: Contender, found: Mapping[str, Any]) -> None:
    text = found.get("skipped") or found.get("failed")
    if text is None:
        text = f"{statistics.median(found['seconds']):.3f} s per step"
    print(f"{cell.name} {contender.name}: {text}", flush=True)
