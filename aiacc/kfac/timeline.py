"""A simulated step of K-FAC as a timeline: what each resource does when. Pure."""

from __future__ import annotations

from aiacc.kfac.methods import Found, Model
from aiacc.kfac.modelled import factor_names
from aiacc.kfac.step import NETWORK, Costs, hiding, simulated
from aiacc.planning.division.placement import largest_first
from aiacc.planning.simulate import Activity, Interval, Timeline
from aiacc.planning.trace import Trace


def timeline_of(found: Found, model: Model, costs: Costs) -> Timeline:
    """Of a step whose factors leave during the passes.

    Rows: what all ranks compute, the network, and each rank that inverts something.
    """
    trace, start_s = model.trace, found.step.compute_s + found.step.exposed_s
    names = [name for layer in model.layer_names for name in factor_names(layer)]
    intervals = [*_computed(trace), *_carried(found, trace, costs)]
    for sent in found.step.stage.sent:
        text = names[sent.factors[0]]
        if len(sent.factors) > 1:
            text += f" and {len(sent.factors) - 1} more"
        times = (start_s + sent.start_s, start_s + sent.end_s)
        intervals.append(_interval(f"inverse of {text}", NETWORK, *times))
    dims = model.dims
    order = largest_first(dims)
    common = [factor for factor in order if found.owners[factor] is None]
    for rank in range(costs.ranks):
        clock = start_s
        for factor in [f for f in order if found.owners[f] == rank] + common:
            end_s = clock + float(costs.inversion.seconds(dims[factor]))
            intervals.append(_interval(f"invert {names[factor]}", f"rank {rank}", clock, end_s))
            clock = end_s
    intervals.sort(key=lambda interval: interval.start_s)  # of those at a time, rank by rank
    return Timeline(tuple(intervals))


def _computed(trace: Trace) -> list[Interval]:
    """Passes and factors, which no communication keeps."""
    return list(simulated(trace, []).intervals)


def _carried(found: Found, trace: Trace, costs: Costs) -> list[Interval]:
    """Buckets, at times of the step with all of its computation."""
    hidden = hiding(trace, costs.overlap)

    def at(moment_s: float) -> float:
        if moment_s < hidden.compute_s:
            return moment_s / costs.overlap
        return moment_s - hidden.compute_s + trace.compute_s

    return [
        _interval(_text(found, interval), NETWORK, at(interval.start_s), at(interval.end_s))
        for interval in simulated(hidden, found.buckets).intervals
        if interval.activity.resource == NETWORK
    ]


def _text(found: Found, interval: Interval) -> str:
    operation, _, number = interval.activity.name.rpartition(" ")
    tensors = found.buckets[int(number)].tensors
    return f"{operation} {number}: {tensors[0]} to {tensors[-1]}"


def _interval(name: str, resource: str, start_s: float, end_s: float) -> Interval:
    return Interval(Activity(name, resource, (end_s - start_s,)), start_s, end_s)
