"""Time per training step of a workload on virtual hosts, for aiacc and its peers."""

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.network import launch, runs
from bench.network.bed import Bed
from bench.network.workloads import workload

LANES = (1, 2, 4, 8)
#: torch's gloo opens one context, with connections of its own, per interface in this list.
GLOO_CONTEXTS = 4
#: Steps after which `aiacc.autotune` has settled, and one more.
_SEARCH_STEPS = 42


@dataclass(frozen=True)
class Contender:
    """One way to train.

    Attributes:
        name: Key in result files.
        title: As in tables.
        program: ``--contender`` of `bench.network.step`.
        variables: Environment of its ranks.
        warmup: Steps before those that count.
        groups: Groups of gradients that are reduced together, 0 for each by itself.
        compression: Attribute of ``aiacc.torch.Compression``.
    """

    name: str
    title: str
    program: str
    variables: dict[str, str]
    warmup: int = 1
    groups: int = 0
    compression: str = "none"


def contenders() -> list[Contender]:
    """Everybody, in the order of the tables."""
    ours = [
        Contender(f"lanes{lanes}", f"aiacc, {lanes} lane{'s' * (lanes > 1)}", "aiacc",
                  {"AIACC_LANES": str(lanes), "AIACC_ENGINE": "tcp"})
        for lanes in LANES
    ]  # fmt: skip
    repeated = ",".join(["eth0"] * GLOO_CONTEXTS)
    return [
        *ours,
        Contender("bf16", f"aiacc, {LANES[-1]} lanes, bfloat16", "aiacc",
                  {"AIACC_LANES": str(LANES[-1]), "AIACC_ENGINE": "tcp"}, compression="bf16"),
        Contender("auto", "aiacc, AIACC_AUTOTUNE", "aiacc",
                  {"AIACC_AUTOTUNE": "1", "AIACC_ENGINE": "tcp"}, _SEARCH_STEPS),
        Contender("ddp", "DDP/gloo", "ddp", {"GLOO_SOCKET_IFNAME": "eth0"}),
        Contender("ddp_multi", f"DDP/gloo, interface listed {GLOO_CONTEXTS} times", "ddp",
                  {"GLOO_SOCKET_IFNAME": repeated}),
    ]  # fmt: skip


def measure(
    bed: Bed, name: str, *, steps: int, rounds: int, only: Sequence[str] = (), timeout_s: float
) -> dict[str, Any]:
    """Run all contenders in turn, ``rounds`` times, every one in jobs of its own.

    Blocks. Main thread only.

    Args:
        bed: The hosts; one rank on each.
        name: Workload.
        steps: Steps that count, of each job.
        rounds: Jobs of each contender; every second round goes backwards.
        only: Names of contenders, all if empty.
        timeout_s: Of one job.

    Returns:
        What a result file has: raw samples in seconds by contender, and where they are from.

    Raises:
        RuntimeError: A job failed.
    """
    chosen = [contender for contender in contenders() if not only or contender.name in only]
    work = workload(name)
    samples: dict[str, list[list[float]]] = {contender.name: [] for contender in chosen}
    lanes: dict[str, list[int]] = {}
    for number in range(rounds):
        for contender in chosen[:: 1 if number % 2 == 0 else -1]:
            found = job(bed, name, contender, steps=steps, timeout_s=timeout_s)
            samples[contender.name].append(found["seconds"])
            if "lanes" in found:
                lanes.setdefault(contender.name, []).append(found["lanes"])
            middle = statistics.median(found["seconds"])
            print(f"{name} {contender.title}: {middle:.3f} s per step", flush=True)
    return {
        "workload": name,
        "bytes": work.bytes,
        "forward_s": work.forward_s,
        "backward_s": max(work.backward_s),
        "bed": asdict(bed.spec),
        "seconds": samples,
        "lanes": lanes,
        **runs.begun(),
    }


def record(run: Mapping[str, Any], path: Path) -> None:
    """Put a run into a result file, in place of an earlier one of its workload and bed."""
    before = runs.kept(path, add=True)
    same = [(old["workload"], old["bed"]) == (run["workload"], run["bed"]) for old in before]
    after = [run if found else old for old, found in zip(before, same, strict=True)]
    runs.save(path, after if any(same) else [*before, run])


def job(
    bed: Bed, name: str, contender: Contender, *, steps: int, timeout_s: float, per_host: int = 1
) -> dict[str, Any]:
    """Run one job of a contender; what `bench.network.step` has found.

    Blocks. Main thread only.

    Args:
        bed: The hosts.
        name: Workload.
        contender: Who.
        steps: Steps that count.
        timeout_s: Of the job.
        per_host: Ranks on each host.

    Raises:
        RuntimeError: The job failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "bench.network.step", "--workload", name]
        command += ["--contender", contender.program, "--warmup", str(contender.warmup)]
        command += ["--steps", str(steps), "--groups", str(contender.groups)]
        command += ["--compression", contender.compression]
        command += ["--output", str(output)]
        bed.reset()
        code = launch.run(
            bed, "explicit", per_host, command, variables=contender.variables, timeout_s=timeout_s
        )
        if code != 0:
            raise RuntimeError(f"[bench.network] {contender.title}: the job ended with code {code}")
        found: dict[str, Any] = json.loads(output.read_text())
        return found
