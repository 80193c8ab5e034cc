"""Why a plan looks as it does, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiacc.planning import planners
from aiacc.planning.cost import ALL_REDUCE, CostModel, Table, amount, counted
from aiacc.planning.execution import Sending, step_s
from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.problem import Problem, starts_of
from aiacc.planning.schedule import arrivals, followed, predict
from aiacc.planning.trace import Trace

#: Bytes of a step that are simulated, which takes a second for each GiB of such units.
_MOST_SENT, _MOST_SENT_UNIT = 8 << 30, 1 << 20
#: Steps that differ by less are equally long.
_SAME_S = 1e-7
#: Factors by which the startup may have been measured wrongly.
_ERRORS = (0.25, 0.5, 2.0, 4.0)


def explain(trace: Trace, cost: CostModel, plan: Plan, sending: Sending) -> Iterator[str]:
    """Lines for a terminal. ``sending``: of the job that ``cost`` was measured in."""
    problem = followed(Problem(trace, cost), plan)
    seconds = predict(problem, plan)
    exposed = seconds - trace.compute_s
    yield (
        f"{trace.model} ({trace.source}): {counted(len(trace.tensors), 'tensor')}, "
        f"{amount(trace.bytes)}, {_ms(trace.compute_s)} of computation"
    )
    if not seconds:
        yield "neither computation nor this network takes any time: all plans are alike"
        return
    yield (
        f"{plan.planner}: {counted(len(plan.buckets), 'bucket')}, step {_ms(seconds)}, of which "
        f"{_ms(exposed)} ({exposed / seconds:.0%}) is communication that nothing hides"
        f"{beside_bound(trace, plan)}"
    )
    if isinstance(cost, Table):  # measured through the core, as its model wants it
        yield from _as_sent(trace, cost, plan, sending)
    yield ""
    if plan.schedule == DECOUPLED:
        yield from _sizes(problem, plan)
    else:
        yield from _buckets(problem, plan, seconds)
    yield ""
    yield from _sensitivity(trace, cost, plan.planner, seconds)


def beside_bound(trace: Trace, plan: Plan) -> str:
    """What a planner that is not exact has proven of its plan, behind the step."""
    if not trace.compute_s < plan.bound_s < plan.predicted_s:
        return ""
    return f"; no plan of {plan.planner} takes less than {_ms(plan.bound_s)}"


def _as_sent(trace: Trace, cost: CostModel, plan: Plan, sending: Sending) -> Iterator[str]:
    most = _MOST_SENT * min(1, sending.unit_bytes / _MOST_SENT_UNIT)
    if trace.bytes > most:
        yield f"as the core would send it: not simulated beyond {amount(most)}"
        return
    sent = [step_s(trace, one, cost, sending) for one in (plan, None)]
    yield (
        f"as the core would send it, with AIACC_UNIT_BYTES={_setting(sending.unit_bytes)} and "
        f"AIACC_LANES={sending.lanes}: {_ms(sent[0])}; without a plan {_ms(sent[1])}"
    )


def _sizes(problem: Problem, plan: Plan) -> Iterator[str]:
    for number, (start, end) in enumerate(zip(starts_of(plan.ends), plan.ends, strict=True)):
        yield _head(problem, plan, number, start, end)


def _buckets(problem: Problem, plan: Plan, seconds: float) -> Iterator[str]:
    ends = plan.ends
    starts, done, spares = starts_of(ends), arrivals(problem, ends, plan.lanes), False
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ready = problem.ready[end - 1]
        alone = float(problem.cost.time(ALL_REDUCE, problem.prefix[end] - problem.prefix[start]))
        yield (
            f"{_head(problem, plan, number, start, end)}: ready at {_ms(ready)}, "
            f"there at {_ms(done[number])} ({_ms(alone)} alone)"
        )
        if number + 1 == len(ends):
            continue
        if problem.kinds[start] != problem.kinds[end]:
            yield f"  ends here: bucket {number + 1} is of another dtype"
        else:
            merged = arrivals(problem, ends[:number] + ends[number + 1 :], plan.lanes)
            change = max(problem.trace.compute_s, *merged) - seconds
            later = merged[number] - done[number + 1]
            what = (
                f"the step would take {_ms(change)} longer"
                if change > _SAME_S
                else f"the step would be {_ms(-change)} shorter"
                if change < -_SAME_S
                else "next to nothing would change"
                if later < _SAME_S
                else f"the step would be as long, but bucket {number + 1} there {_ms(later)} later"
            )
            spares = spares or what.endswith("later")
            yield f"  ends here: with bucket {number + 1} in it, {what}"
    if spares:
        yield "there later: less time to spare if sending takes longer than this network says"


def _head(problem: Problem, plan: Plan, number: int, start: int, end: int) -> str:
    size = amount(problem.prefix[end] - problem.prefix[start])
    return (
        f"bucket {number}: {counted(end - start, 'tensor')}, {size}, to {plan.buckets[number][-1]}"
    )


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
            f"{counted(len(made.buckets), 'bucket')}, step {_ms(took)} ({took / seconds - 1:+.1%})"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.1f} ms"


def _setting(nbytes: int) -> str:
    """As AIACC_UNIT_BYTES takes it."""
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit}{suffix}"
    return str(nbytes)
