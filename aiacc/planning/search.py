"""Which plan a running job tries next, and which it stays with, by its own steps. Pure.

Shi et al., "MG-WFBP", plan once, before training, with costs that were fitted on an idle network. A
job has better costs: the times of its own operations. It plans with them, compares what it has
predicted with what it gets, and goes back to what was faster.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from aiacc.planning import planners
from aiacc.planning.cost import Affine, counted
from aiacc.planning.plan import Constraints, Plan
from aiacc.planning.trace import Tensor, Trace

#: Seconds a and seconds per byte b of an operation: a + b M.
Costs: TypeAlias = tuple[float, float]
#: Steps that are further off what they were begin a new search, as a fraction.
TOLERANCE = 0.1
#: Plans from newer costs, at most, while predictions are off by more than that. Where next to all
#: is hidden, wrong costs change plans a lot and predictions little.
REPLANS, DOUBT = 2, 0.05
#: What no search may end behind.
RIVALS = ("ddp", "threshold(25)")
#: Large tensors are cut into units, which follow one another on each lane. Where a message takes
#: long to arrive, larger units may be faster, by this factor: what is tried last.
GROWTH = 8
#: The argument of `DistributedOptimizer` that asks for a search.
AUTO = "auto"
_ONE_TENSOR = Trace("", (Tensor("", 1, "float32", 1.0, 0.0),), 0.0, 1.0, "modelled")


def check_wish(wish: str) -> str:
    """``wish`` itself; ValueError unless it is AUTO or a planner for schedule ``all_reduce``."""
    if wish == AUTO:
        return wish
    if planners.is_known(wish) and wish != "decoupled":
        # Numbers that a planner refuses shall fail on every rank, not later on the one that plans.
        planners.plan(wish, _ONE_TENSOR, Affine(1.0, 1.0))
        return wish
    if wish == "decoupled":
        raise ValueError(
            f"plan={wish!r} (expected a planner for schedule 'all_reduce'); pass "
            "schedule='decoupled' and model=; its plan is a file of `aiacc-plan plan --planner "
            "decoupled`"
        )
    raise ValueError(
        f"plan={wish!r:.50} (expected {AUTO!r}, a planner such as 'optimal' or 'threshold(25)', or "
        "a Plan: Plan.decode(text) reads the file of aiacc-plan)"
    )


@dataclass
class Contestant:
    """A plan, or None for no plan, and the median step of each visit in seconds."""

    plan: Plan | None
    #: Of units.
    growth: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def mean_s(self) -> float:
        """Of a step."""
        return fmean(self.seconds)

    @property
    def off(self) -> float:
        """How far the last visit was from the plan's prediction, as a fraction of that."""
        return 0.0 if self.plan is None else abs(self.seconds[-1] / self.plan.predicted_s - 1)

    def describe(self) -> str:
        """What it is and took, for people."""
        if self.plan is None:
            what, predicted = "no plan", ""
        else:
            what = f"{self.plan.planner} with {counted(len(self.plan.buckets), 'bucket')}"
            predicted = f"predicted {self.plan.predicted_s:.4g} s"
        if self.growth > 1:
            what += f" and units {self.growth} times as large"
        took = f"{self.mean_s:.4g} s a step" if self.seconds else ""
        return " ".join([what, ", ".join(text for text in (took, predicted) if text)])


class PlanSearch:
    """Tries plans one after the other, there and back, so that a drift hits all alike.

    With another wish than AUTO it plans once, and tries nothing.

    Attributes:
        contestants: What was tried, in the order of the first visits.
        current: What the next steps are to use.
        done: Whether that is the result.
    """

    def __init__(
        self,
        wish: str,
        trace: Trace,
        constraints: Constraints,
        costs: Costs,
        seconds: float,
        *,
        outside_s: float = 0.0,
        grows: bool = False,
        unit_bytes: int = 0,
    ) -> None:
        """Plan from what steps without a plan have shown.

        Args:
            wish: AUTO or the name of a planner.
            trace: When gradients are ready.
            constraints: Of plans.
            costs: Of an operation in those steps.
            seconds: Median step.
            outside_s: Of a step, what ``trace`` does not have: data, update, earlier passes.
            grows: Whether to try larger units.
            unit_bytes: Of a unit now. They are not tried with a plan that has no larger bucket,
                for then units cut nothing.
        """
        self._wish = wish
        self._planner = planners.DEFAULT if wish == AUTO else wish
        self._trace, self._constraints = trace, constraints
        self._outside_s = outside_s
        self._replans, self._grows = REPLANS, grows
        self._rivals = list(RIVALS)
        self._unit_bytes = unit_bytes
        self._outward = True
        self._way_back: list[Contestant] = []
        self.contestants = [Contestant(None, seconds=[seconds])]
        self.current = self.contestants[0]
        self._try(self._planner, costs)
        self.done = wish != AUTO

    def add(self, seconds: float, costs: Costs) -> None:
        """Take the median step of the visit that ends, and the costs of its operations."""
        self.current.seconds.append(seconds)
        if self._outward:
            if self._try_another(costs):
                return
            self._outward = False
            self._way_back = list(self.contestants)
        if self._way_back:
            self.current = self._way_back.pop()
        else:
            self.done = True
            self.current = min(self.contestants, key=lambda one: one.mean_s)

    def describe(self) -> str:
        """What was found, in a line for people."""
        others = "; ".join(one.describe() for one in self.contestants if one is not self.current)
        return f"plan={self._wish!r}: {self.current.describe()} (before: {others})"

    def _try_another(self, costs: Costs) -> bool:
        current = self.current
        if current.off > DOUBT and self._replans:
            self._replans -= 1
            if self._try(self._planner, costs, current.growth):
                return True
        self._replans = 0
        while self._rivals:
            if self._try(self._rivals.pop(0), costs):
                return True
        if not self._grows:
            return False
        self._grows = False
        plan = min(self.contestants, key=lambda one: one.mean_s).plan
        if plan is not None and self._largest(plan) <= self._unit_bytes:
            return False
        return self._enter(Contestant(plan, GROWTH))

    def _largest(self, plan: Plan) -> int:
        """Bytes of its largest bucket."""
        bytes_of = {tensor.name: tensor.bytes for tensor in self._trace.tensors}
        return max(sum(bytes_of[name] for name in bucket) for bucket in plan.buckets)

    def _try(self, planner: str, costs: Costs, growth: int = 1) -> bool:
        """Go on with a plan of ``planner``, unless one with its buckets was tried."""
        plan = planners.plan(planner, self._trace, Affine(*costs), self._constraints)
        plan = dataclasses.replace(plan, predicted_s=plan.predicted_s + self._outside_s)
        if any(one.plan and one.plan.buckets == plan.buckets for one in self.contestants):
            return False
        return self._enter(Contestant(plan, growth))

    def _enter(self, contestant: Contestant) -> bool:
        self.current = contestant
        self.contestants.append(contestant)
        return True


class Watch:
    """Notices that steps take another time than when the search ended: the network has changed."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._settled_s: float | None = None
        self._before = False

    def changed(self, seconds: float) -> bool:
        """Whether this median of many steps and the one before were off by more than TOLERANCE."""
        if self._settled_s is None:
            self._settled_s = seconds
            return False
        off = abs(seconds / self._settled_s - 1) > TOLERANCE
        twice, self._before = off and self._before, off
        return twice
