"""All planners by the names that users give them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from aiacc import arguments
from aiacc.planning import baselines, lanes, mgwfbp, optimal
from aiacc.planning.cost import CostModel
from aiacc.planning.decoupled import RESOLUTION, decoupled
from aiacc.planning.plan import UNCONSTRAINED, Constraints, Plan
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import in_turn
from aiacc.planning.trace import Trace

DEFAULT = "optimal"

_SIMPLE: dict[str, Callable[[Problem], Plan]] = {
    "per_tensor": baselines.per_tensor,
    "single": baselines.single,
    "ddp": baselines.ddp,
    "mgwfbp_paper": mgwfbp.mgwfbp_paper,
    "optimal": optimal.optimal,
    "optimal_k": optimal.optimal_k,
    "decoupled": decoupled,
}
_WITH_NUMBER: dict[str, Callable[[Problem, float], Plan]] = {
    "threshold": baselines.threshold,
    # A number of hundreds of digits is infinite.
    "lanes": lambda problem, most: lanes.lanes(problem, int(min(most, 1e6))),
}
#: Of the step time: what these planners give for fewer buckets.
_SLACK = {"optimal_k": optimal.SLACK, "decoupled": RESOLUTION}
_CANDIDATES = ("single", "threshold(25)", "ddp", "mgwfbp_paper")
#: Where kinds take turns nothing is exact: what is better of these is taken then.
_NO_WORSE_THAN = {
    "optimal_k": _CANDIDATES,
    "optimal": (*_CANDIDATES, "optimal_k"),
    "lanes": (*_CANDIDATES, "optimal_k", "optimal"),
}
#: As they are written: those in ALL are what "all" stands for.
ALL = (
    "per_tensor",
    "single",
    "threshold(25)",
    "ddp",
    "mgwfbp_paper",
    "optimal",
    "optimal_k",
    "lanes(4)",
    "decoupled",
)


def plan(
    name: str, trace: Trace, cost: CostModel, constraints: Constraints = UNCONSTRAINED
) -> Plan:
    """What the planner of that name makes of a trace.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another name.
    """
    arguments.check(
        locals(),
        name=arguments.TEXT,
        trace=arguments.of(Trace, "a Trace"),
        cost=arguments.having(("time",), "a CostModel"),
        constraints=arguments.of(Constraints, "Constraints"),
    )
    planner = _planner(name)
    if planner is None:
        raise ValueError(
            f"planner {name!r} (expected {', '.join(_SIMPLE)}, threshold(MIB) or lanes(NUMBER))"
        )
    problem = Problem(trace, cost, constraints)
    if not problem.takes_turns:
        return planner(problem)
    plans = _in_orders(problem, planner)
    for candidate in _NO_WORSE_THAN.get(name.partition("(")[0], ()):
        if other := _planner(candidate):
            plans += _in_orders(problem, other)
    enough = min(plan.predicted_s for plan in plans) * (1 + _SLACK.get(name, 0.0))
    good = [plan for plan in plans if plan.predicted_s <= enough]
    best = min(good, key=lambda plan: len(plan.buckets))
    return replace(best, planner=plans[0].planner)


def _in_orders(problem: Problem, planner: Callable[[Problem], Plan]) -> list[Plan]:
    """Plans of tensors whose kinds take turns.

    Planners merge neighbours, so the kinds are put together in several ways: by the ends that
    buckets would have if all were of one kind, altogether, and as they come.
    """
    ends = planner(problem.of_one_kind()).ends
    orders = (problem.by_kind(ends), problem.by_kind(), problem)
    return [in_turn(problem, planner(order)) for order in orders]


def is_known(name: str) -> bool:
    """Whether `plan` takes it."""
    return _planner(name) is not None


def _planner(name: str) -> Callable[[Problem], Plan] | None:
    match = re.fullmatch(r"(\w+)\((\d+(\.\d+)?)\)", name)
    if match and match[1] in _WITH_NUMBER and not (match[1] == "lanes" and match[3]):
        planner, number = _WITH_NUMBER[match[1]], float(match[2])
        return lambda problem: planner(problem, number)
    return _SIMPLE.get(name)
