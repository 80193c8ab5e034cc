"""Steps with the plans of all planners on capped hosts, predicted from a probe and measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiacc.planning import planners
from aiacc.planning.execution import Sending, step_s
from aiacc.planning.network import Network
from aiacc.planning.plan import Plan, bucket_cap_mb_list
from aiacc.planning.trace import Tensor, Trace
from bench.bed.bed import bed_for
from bench.network import cells
from bench.network.cells import Contender, ddp
from bench.network.workloads import Workload, workload
from bench.record import Run
from bench.tables import amount

#: MODEL:MBIT:DELAY_MS:DEVICE, and AIACC_UNIT_BYTES unless it is 1 MiB. The device computes so many
#: times as long as all gradients take on the wire, or is the published one. At 1.5 the backward
#: pass is as long as the wire, and planning decides most.
CELLS = (
    "resnet50:1000:0:published",
    "resnet50:1000:10:1.5",
    "resnet50:300:10:1:8MiB",
    "densenet201:1000:0:1",
    "densenet201:1000:10:1.5:8MiB",
    "bert-base:1000:0:1",
)
#: AIACC_LANES of all ranks, which is its default on several hosts.
LANES = 4
THRESHOLD = "threshold(25)"
PLANNERS = (
    *("per_tensor", "single", THRESHOLD, "mgwfbp_paper", "optimal", "optimal_k"),
    *(f"lanes({LANES})", "decoupled"),
)
#: Of cells whose gradients take so long on the wire only FEW take part, or not even `plan="auto"`,
#: which needs up to 92 steps until it has chosen.
_FEW_S, _NO_AUTO_S = 2.5, 5.0
_AUTO_WARMUP = 92


def _ours(title: str, planner: str | None, lanes: int = LANES, **options: Any) -> Contender:
    """Steps with a planner's plan; after "auto" no step in which nothing is sent says anything."""
    variables, unsent = {"AIACC_LANES": str(lanes)}, planner != "auto"
    return Contender(title, "aiacc", variables, planner, unsent=unsent, **options)


_DDP = {f"ddp_{cap}_x{times}": ddp(cap, times) for times in (1, 4) for cap in (10, 25, 50)}
#: Their plans, but "auto", are names of planners until there is a network to plan for.
CONTENDERS = {
    "none": Contender("no communication", "none"),
    **{name: _ours(f"`{name}`", name) for name in PLANNERS},
    "decoupled_1": _ours("`decoupled`, 1 lane", "decoupled", lanes=1),
    "optimal_views": _ours("`optimal`, views", "optimal", views=True),
    "dynamic": _ours("no plan", None),
    "auto": _ours('`plan="auto"`', "auto", warmup=1 + _AUTO_WARMUP),
    **_DDP,
    "ddp_list": Contender("DDP/gloo, our list", "ddp", plan="optimal", views=True),
}
TITLES = {name: one.title for name, one in CONTENDERS.items()}
OURS = [name for name, one in CONTENDERS.items() if one.kind == "aiacc"]
PEERS = tuple(_DDP)
FEW = (THRESHOLD, "mgwfbp_paper", "optimal", "decoupled_1", "auto", *_DDP, "ddp_list")


@dataclass(frozen=True)
class Cell:
    """One network and one device; ``ratio`` is None for the published one."""

    work: Workload
    mbit: float
    delay_ms: float
    ratio: float | None
    unit: str

    @property
    def title(self) -> str:
        """As in tables."""
        model = self.work.title.partition(",")[0]
        device = "published device" if self.ratio is None else f"{self.ratio:g} of the wire"
        unit = self.unit.replace("MiB", " MiB")
        return f"{model}, {self.mbit:g} Mbit/s, {self.delay_ms:g} ms, units of {unit}, {device}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment of all ranks, those of the probe too."""
        return {"AIACC_ENGINE": "tcp", "AIACC_LANES": str(LANES), "AIACC_UNIT_BYTES": self.unit}

    @property
    def contenders(self) -> list[str]:
        """Who takes part."""
        wire = cells.wire_s(self.work.bytes, self.mbit)
        names = FEW if wire > _FEW_S else CONTENDERS
        return [name for name in names if name != "auto" or wire < _NO_AUTO_S]


def cell_of(name: str) -> Cell:
    """A cell by its name."""
    model, mbit, delay_ms, device, unit = [*name.split(":"), "1MiB"][:5]
    work, ratio = workload(model), None if device == "published" else float(device)
    if ratio is not None:
        work = work.lasting(ratio * cells.wire_s(work.bytes, float(mbit)))
    return Cell(work, float(mbit), float(delay_ms), ratio, unit)


def trace_of(work: Workload) -> Trace:
    """The step as planners take it: what the modelled device does, exactly."""
    needs = [0.0, *itertools.accumulate(work.layers_s)]
    tensors = [
        Tensor(
            name,
            4 * math.prod(shape),
            "float32",
            work.forward_s + after_s,
            min(need_s, work.forward_s),
        )
        for (name, shape), after_s, need_s in zip(
            work.shapes, work.backward_s, needs[:-1], strict=True
        )
    ]
    return Trace(
        model=work.title,
        tensors=tuple(reversed(tensors)),
        forward_s=work.forward_s,
        backward_s=max(work.backward_s),
        source="modelled",
    )


def probe_mib(mbit: float) -> int:
    """Largest size that is probed: about half a second of the wire, from 4 to 32 MiB."""
    most = 0.5 / cells.wire_s(1 << 20, mbit)
    return int(min(32, max(4, 2 ** math.floor(math.log2(most)))))


def measure(name: str, rounds: int | None) -> dict[str, Any]:
    """See Row. What the model says is made from a probe before the rounds."""
    cell = cell_of(name)
    work, trace = cell.work, trace_of(cell.work)
    with bed_for(cells.spec("planning", cell.mbit, delay_ms=cell.delay_ms)) as bed:
        network = cells.probed(bed, cell.variables, probe_mib(cell.mbit))
        fields = {name: value for name, value in network.items() if name != "version"}
        cost = Network(fields).cost()
        plans = {planner: planners.plan(planner, trace, cost) for planner in PLANNERS}
        predicted = {
            name: _predicted(
                step_s(trace, plans.get(one.plan or ""), cost, _sending(cell, one)), work
            )
            for name, one in CONTENDERS.items()
            if one.unsent
        }
        contenders = {name: _planned(CONTENDERS[name], plans, trace) for name in cell.contenders}
        found = cells.trained(bed, work, contenders, rounds, cell.variables)
    return {
        "title": cell.title,
        **found,
        "compute_s": work.compute_s,
        "network": network,
        "plans": {planner: _kept(plan) for planner, plan in plans.items()},
        "predicted": predicted,
    }


def _sending(cell: Cell, one: Contender) -> Sending:
    """How the core sends what a contender has, whatever the planner thinks."""
    unit_bytes, lanes = int(cell.unit.removesuffix("MiB")) << 20, int(one.variables["AIACC_LANES"])
    return Sending(unit_bytes, lanes, one.views, cells.HOSTS)


def _predicted(seconds: float, work: Workload) -> dict[str, float]:
    return {"step_s": seconds, "exposed_s": seconds - work.compute_s}


def _kept(plan: Plan) -> dict[str, Any]:
    """What a result file has of a plan; ``predicted_s`` is the planner's."""
    return {
        "buckets": len(plan.buckets),
        "predicted_s": plan.predicted_s,
        "bound_s": plan.bound_s,
    }


def _planned(one: Contender, plans: Mapping[str, Plan], trace: Trace) -> Contender:
    """A contender with what its planner says."""
    if one.plan not in plans:
        return one
    plan = plans[one.plan]
    if one.kind == "ddp":
        return replace(one, plan=None, limits_mib=bucket_cap_mb_list(trace, plan))
    return replace(one, plan=plan.encode())


def tables(runs: Sequence[Run]) -> str:
    """See Row."""
    return cells.parts(
        {
            "Steps, and ours over the fastest DDP:": cells.steps(runs, TITLES, PEERS, OURS),
            "Steps, measured / model, from the probe before the run, of the plan as the core sends "
            "it:": cells.models(runs, TITLES, "step_s"),
            "Communication that computation does not hide, measured / model:": cells.models(
                runs, TITLES, "exposed_s"
            ),
            "Buckets of the plans, and steps as the planners see them, one bucket at a time "
            f"(`lanes({LANES})`: {LANES}, and what no such plan beats):": cells.across(
                runs, {name: f"`{name}`" for name in PLANNERS}, _plan_text
            ),
        }
    )


def _plan_text(run: Run, planner: str) -> str:
    plan = run["plans"].get(planner)
    if plan is None:
        return ""
    text = f"{plan['buckets']}; {amount(plan['predicted_s'], 's')}"
    return text + (f" (≥ {amount(plan['bound_s'], 's')})" if planner.startswith("lanes") else "")


def plot(runs: Sequence[Run]) -> Any:
    """See Row."""
    return cells.plot(runs, TITLES, OURS)
