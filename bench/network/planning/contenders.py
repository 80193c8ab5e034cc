"""Who takes part, with which plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiacc.planning import planners
from aiacc.planning.cost import CostModel
from aiacc.planning.execution import Sending, step_s
from aiacc.planning.plan import Plan, bucket_cap_mb_list
from aiacc.planning.trace import Trace
from bench.network.planning.cells import AUTO_WARMUP, HOSTS, Cell, unit_bytes

#: AIACC_LANES of all ranks, which is its default on several hosts.
LANES = 4
#: Operations at a time that are probed; more of them share what these had.
PROBED_LANES = 2
THRESHOLD = "threshold(25)"
PLANNERS = (
    "per_tensor",
    "single",
    THRESHOLD,
    "mgwfbp_paper",
    "optimal",
    "optimal_k",
    f"lanes({LANES})",
    "decoupled",
)


@dataclass(frozen=True)
class Contender:
    """One way to train.

    Attributes:
        name: Key in result files.
        title: As in tables.
        kind: What `bench.network.planning.step` does: none (no communication), aiacc, ddp.
        planner: Whose plan it takes, "" for none.
        warmup: Steps that do not count, besides the first one: TCP finds its windows in them.
        lanes: AIACC_LANES.
        views: Whether gradients are views of buckets, and are zeroed before each step.
    """

    name: str
    title: str
    kind: str
    planner: str = ""
    warmup: int = 3
    lanes: int = LANES
    views: bool = False


CONTENDERS = (
    Contender("none", "no communication", "none"),
    *(Contender(name, f"`{name}`", "aiacc", name) for name in PLANNERS),
    Contender("decoupled_1", "`decoupled`, 1 lane", "aiacc", "decoupled", lanes=1),
    Contender("optimal_views", "`optimal`, views", "aiacc", "optimal", views=True),
    Contender("dynamic", "no plan", "aiacc"),
    Contender("ddp", "DDP/gloo, 25 MB", "ddp"),
    Contender("ddp_list", "DDP/gloo, our list", "ddp", "optimal"),
    Contender("auto", '`plan="auto"`', "aiacc", "auto", AUTO_WARMUP),
)
#: Those of a cell in which steps take longest.
FEW = (THRESHOLD, "mgwfbp_paper", "optimal", "decoupled_1", "ddp", "ddp_list", "auto")


def plans(trace: Trace, cost: CostModel) -> dict[str, Plan]:
    """The plan of every planner."""
    return {name: planners.plan(name, trace, cost) for name in PLANNERS}


def prediction(plan: Plan) -> dict[str, Any]:
    """What a result file has of a plan; ``predicted_s`` is the planner's."""
    return {
        "buckets": len(plan.buckets),
        "schedule": plan.schedule,
        "lanes": plan.lanes,
        "predicted_s": plan.predicted_s,
        "bound_s": plan.bound_s,
        "digest": plan.digest,
    }


def sent(cell: Cell, made: Mapping[str, Plan], trace: Trace, cost: CostModel) -> dict[str, float]:
    """Seconds of the step of each contender as the core sends it, whatever the planner thinks."""
    return {
        one.name: step_s(
            trace,
            made.get(one.planner),
            cost,
            Sending(unit_bytes(cell), one.lanes, one.views, HOSTS),
        )
        for one in CONTENDERS
        if one.kind == "aiacc" and one.name != "auto"
    }


def taking_part(cell: Cell, number: int) -> list[Contender]:
    """Contenders of a round in their order: there, and back in every second one."""
    everybody = [
        one
        for one in CONTENDERS
        if number < (cell.auto_rounds if one.name == "auto" else cell.rounds)
        and (one.name in FEW or not cell.few)
    ]
    return everybody if number % 2 == 0 else everybody[::-1]


def task(contender: Contender, made: Mapping[str, Plan], trace: Trace) -> dict[str, Any]:
    """What the ranks are told of a contender, as JSON."""
    found: dict[str, Any] = {
        "name": contender.name,
        "kind": contender.kind,
        "warmup": contender.warmup,
        "lanes": contender.lanes,
        "views": contender.views,
        "unsent": contender.kind == "aiacc" and contender.name != "auto",
        "plan": None,
        "limits_mib": None,
    }
    if contender.kind == "ddp" and contender.planner:
        found["limits_mib"] = bucket_cap_mb_list(trace, made[contender.planner])
    elif contender.planner:
        plan = made.get(contender.planner)
        found["plan"] = contender.planner if plan is None else plan.encode()
    return found
