"""Why a plan looks as it does, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiacc.planning import planners
from aiacc.planning.cost import ALL_REDUCE, CostModel, Table
from aiacc.planning.execution import Sending, step_s
from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.problem import Problem, starts_of
from aiacc.planning.schedule import all_reduce_step, arrivals, predict
from aiacc.planning.trace import Trace

_MIB = 1 << 20
#: Steps that differ by less are equally long.
_SAME_S = 1e-7
#: Factors by which the startup may have been measured wrongly.
_ERRORS = (0.25, 0.5, 2.0, 4.0)


def explain(trace: Trace, cost: CostModel, plan: Plan, ranks: int | None = None) -> Iterator[str]:
    """Lines for a terminal. ``ranks``: those of ``cost``, if they are known."""
    problem = Problem(trace, cost)
    seconds = predict(problem, plan)
    exposed = seconds - trace.compute_s
    yield (
        f"{trace.model} ({trace.source}): {len(trace.tensors)} tensors, "
        f"{trace.bytes / _MIB:.1f} MiB, {_ms(trace.compute_s)} of computation"
    )
    if not seconds:
        yield "neither computation nor this network takes any time: all plans are alike"
        return
    yield (
        f"{plan.planner}: {len(plan.buckets)} buckets, step {_ms(seconds)}, of which "
        f"{_ms(exposed)} ({exposed / seconds:.0%}) is communication that nothing hides"
    )
    if isinstance(cost, Table):  # measured through the core, as its model wants it
        yield from _as_sent(trace, cost, plan, ranks)
    yield ""
    if plan.schedule == DECOUPLED:
        yield from _sizes(problem, plan)
    else:
        yield from _buckets(problem, plan, seconds)
    yield ""
    yield from _sensitivity(trace, cost, plan.planner, seconds)


def _as_sent(trace: Trace, cost: CostModel, plan: Plan, ranks: int | None) -> Iterator[str]:
    sending = Sending() if ranks is None else Sending(ranks=ranks)
    sent = [step_s(trace, one, cost, sending) for one in (plan, None)]
    yield (
        f"as the core sends it, in units of {sending.unit_bytes / _MIB:g} MiB over {sending.lanes} "
        f"lanes: {_ms(sent[0])}; without a plan {_ms(sent[1])}"
    )


def _sizes(problem: Problem, plan: Plan) -> Iterator[str]:
    for number, (start, end) in enumerate(zip(starts_of(plan.ends), plan.ends, strict=True)):
        size = (problem.prefix[end] - problem.prefix[start]) / _MIB
        last = plan.buckets[number][-1]
        yield f"bucket {number}: {end - start} tensors, {size:.2f} MiB, to {last}"


def _buckets(problem: Problem, plan: Plan, seconds: float) -> Iterator[str]:
    ends = plan.ends
    starts, done = starts_of(ends), arrivals(problem, ends, plan.lanes)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ready = problem.ready[end - 1]
        size = problem.prefix[end] - problem.prefix[start]
        alone = float(problem.cost.time(ALL_REDUCE, size))
        yield (
            f"bucket {number}: {end - start} tensors, {size / _MIB:.2f} MiB, to "
            f"{plan.buckets[number][-1]}: ready at {_ms(ready)}, there at {_ms(done[number])} "
            f"({_ms(alone)} alone)"
        )
        if number + 1 < len(ends):
            merged = all_reduce_step(problem, ends[:number] + ends[number + 1 :], plan.lanes)
            change = merged - seconds
            what = (
                f"the step would take {_ms(change)} longer"
                if change > _SAME_S
                else f"the step would be {_ms(-change)} shorter"
                if change < -_SAME_S
                else "the step would be as long: something hides the difference"
            )
            yield f"  ends here: with bucket {number + 1} in it, {what}"


@dataclass(frozen=True)
class _Mistaken:
    """``cost`` with a startup that is wrong by ``factor``."""

    cost: CostModel
    factor: float

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        startup = self.cost.time(operation, 0, lanes)
        return self.cost.time(operation, nbytes, lanes) + (self.factor - 1) * startup


def _sensitivity(trace: Trace, cost: CostModel, planner: str, seconds: float) -> Iterator[str]:
    yield "if the startup a is not what was measured, a plan for the wrong one costs:"
    for factor in _ERRORS:
        wrong = _Mistaken(cost, factor)
        made = planners.plan(planner, trace, wrong)
        took = predict(Problem(trace, cost), made)
        yield (
            f"  planned for {factor:g} a ({float(wrong.time(ALL_REDUCE, 0)):.3g} s): "
            f"{len(made.buckets)} buckets, step {_ms(took)} ({took / seconds - 1:+.1%})"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.1f} ms"
