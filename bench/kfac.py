"""``python -m bench.kfac``: SPD-KFAC's published results again, by the simulator, and ours beside.

Everything here is simulated; `aiacc.kfac.published` says what is taken as published and which two
quantities are calibrated. Writes bench/results/kfac.json, the pictures beside it and, with
``--write``, the tables of docs/kfac_simulated.md; ``--check`` compares those with the file.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from aiacc.kfac import published
from aiacc.kfac.costs import PUBLISHED_EXPONENTIAL
from aiacc.kfac.methods import (
    D_KFAC,
    MPD_KFAC,
    PIPELINE_ALONE,
    PLACEMENT_ALONE,
    SPD_KFAC,
    Method,
    exposed_factors_s,
    ours,
    run,
    sgd_s,
)
from aiacc.kfac.placement import by_dimension, in_turn, place
from aiacc.kfac.stage import StageCosts, stage
from aiacc.kfac.step import HOROVOD, INTERLEAVED, PER_TENSOR, Costs
from aiacc.kfac.timeline import timeline_of
from aiacc.planning import chart
from aiacc.planning.network import network_of
from aiacc.planning.simulate import Interval, Timeline
from bench import kfac_page
from bench.machine import ROOT, commit

RESULT = ROOT / "bench" / "results" / "kfac.json"
PLOT = RESULT.with_name("kfac.svg")
GANTT = RESULT.with_name("kfac_gantt.svg")

#: Of the timelines.
_GANTT_RANKS, _GANTT_NET = 4, "alpha=30e-6,gbit=25"

_TOTALS = (D_KFAC, MPD_KFAC, SPD_KFAC)
#: In the order of the paper: without and with the pipeline, without and with the placement.
_ABLATION = (D_KFAC, PIPELINE_ALONE, PLACEMENT_ALONE, SPD_KFAC)
#: Ways in which factors travel, by the field that has what was measured; the last one is ours.
_FUSIONS = {
    "bulk_s": D_KFAC,
    "per_tensor_s": dataclasses.replace(PIPELINE_ALONE, fusion=PER_TENSOR),
    "threshold_s": dataclasses.replace(PIPELINE_ALONE, fusion=HOROVOD),
    "rule_s": PIPELINE_ALONE,
    "exact_s": dataclasses.replace(PIPELINE_ALONE, fusion=INTERLEAVED),
}
#: Parts of ours that are left out.
_LESS = {
    "all": {},
    "no reduction to owners": {"reduces": False},
    "no gathered inverses": {"gathers": False},
    "neither": {"reduces": False, "gathers": False},
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.kfac", description=__doc__)
    parser.add_argument("--write", action="store_true", help="the tables of the page, too")
    parser.add_argument("--check", action="store_true", help="compare the tables, compute nothing")
    options = parser.parse_args()
    if options.check:
        page = kfac_page.PAGE.read_text()
        return 0 if page == kfac_page.with_tables(page, json.loads(RESULT.read_text())) else 1
    report = simulated()
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    _draw(report)
    if options.write:
        kfac_page.PAGE.write_text(kfac_page.with_tables(kfac_page.PAGE.read_text(), report))
    print(f"wrote {RESULT.relative_to(ROOT)}")
    return 0


def simulated() -> dict[str, Any]:
    """Everything that the page states; seconds."""
    return {
        "kind": "simulated",
        "commit": commit(),
        "calibrated": {
            "inversion": dataclasses.asdict(published.inversion()),
            "overlap": published.OVERLAP,
        },
        "models": {name: of_model(name) for name in published.MEASURED},
        "sensitivity": {
            title: _largest_errors(costs) for title, costs in _other_clusters().items()
        },
    }


def of_model(name: str) -> dict[str, Any]:
    """One model on the published cluster."""
    measured, model, costs = published.MEASURED[name], published.model(name), published.costs()
    best = ours(model, costs)
    extra_s = published.unexplained_s(name)
    return {
        "title": model.title,
        "unexplained_s": extra_s,
        "totals_s": _totals(name, _TOTALS, costs),
        "published_totals_s": list(measured.totals_s),
        "ours_s": {
            title: ours(model, costs, **less).step.seconds + extra_s
            for title, less in _LESS.items()
        },
        "ours": {
            "compute_s": best.step.compute_s,
            "exposed_s": best.step.exposed_s,
            "inverting_s": best.step.stage.compute_s,
            "sending_s": best.step.stage.finish_s - best.step.stage.compute_s,
            "owned": sum(owner is not None for owner in best.owners),
            "factors": len(best.owners),
            "buckets": len(best.buckets),
        },
        "exposed_factors_s": {
            field: exposed_factors_s(method, model, costs) for field, method in _FUSIONS.items()
        },
        "published_exposed_factors_s": {
            field: getattr(measured, field) for field in _FUSIONS if hasattr(measured, field)
        },
        "stages_s": _stages(name, costs),
        "ablation_s": _totals(name, _ABLATION, costs),
        "published_ablation_s": [
            measured.totals_s[0],
            measured.pipeline_alone_s,
            measured.placement_alone_s,
            measured.totals_s[2],
        ],
    }


def _totals(name: str, methods: Sequence[Method], costs: Costs) -> list[float]:
    model = published.model(name)
    extra_s = published.MEASURED[name].sgd_s - sgd_s(model, costs)
    return [run(method, model, costs).step.seconds + extra_s for method in methods]


def _stages(name: str, costs: Costs) -> dict[str, Any]:
    """Inversions on the busiest rank, the whole stage, and what was published; ours has a bound."""
    measured, dims = published.MEASURED[name], published.model(name).dims
    found = {}
    behind = StageCosts(costs.inversion, costs.single, overlap=0.0)
    for title, owners, known in (
        ("everybody", (None,) * len(dims), (measured.inversion_s, 0.0)),
        ("in turn", in_turn(dims, costs.ranks), measured.in_turn_s),
        ("by dimension", by_dimension(dims, costs.ranks), measured.placed_s),
    ):
        took = stage(dims, owners, costs.ranks, behind)
        found[title] = {
            "compute_s": took.compute_s,
            "finish_s": took.finish_s,
            "published_s": [known[0], sum(known)],
        }
    for title, way in (
        ("ours, one by one", StageCosts(costs.inversion, costs.single, overlap=costs.overlap)),
        ("ours, gathered", StageCosts(costs.inversion, costs.fused, True, costs.overlap)),
    ):
        placed = place(dims, costs.ranks, way)
        took = stage(dims, placed.owners, costs.ranks, way)
        found[title] = {
            "compute_s": took.compute_s,
            "finish_s": took.finish_s,
            "bound_s": placed.bound_s,
            "owned": sum(owner is not None for owner in placed.owners),
        }
    return found


def _other_clusters() -> dict[str, Costs]:
    """What the totals would be with other constants, one changed at a time."""
    base = published.costs()
    low, high = published.OVERLAP / 2, published.OVERLAP * 2
    return {
        "as calibrated": base,
        "overlap 0: nothing is hidden": published.costs(0.0),
        f"overlap {low:g}": published.costs(low),
        f"overlap {high:g}": published.costs(high),
        "overlap 1: all may be hidden": published.costs(1.0),
        "12.2 ms for single tensors, too": dataclasses.replace(base, single=published.FUSED),
        "0.93 ms for buckets, too": dataclasses.replace(base, fused=published.SINGLE),
        "the published exponential": dataclasses.replace(base, inversion=PUBLISHED_EXPONENTIAL),
    }


def _largest_errors(costs: Costs) -> dict[str, float]:
    """Of each method the error that is furthest from 0, of four models."""
    errors: dict[str, float] = {}
    for name, measured in published.MEASURED.items():
        totals = _totals(name, _TOTALS, costs)
        for method, total, known in zip(_TOTALS, totals, measured.totals_s, strict=True):
            error = total / known - 1
            errors[method.title] = max(errors.get(method.title, 0.0), error, key=abs)
    return errors


def _draw(report: dict[str, Any]) -> None:
    rows, known = {}, {}
    for name, model in report["models"].items():
        measured = published.MEASURED[name]
        before = {"passes and gradients": measured.sgd_s, "building factors": measured.factor_s}
        exposed, stages = model["exposed_factors_s"], model["stages_s"]
        for method, fusion, placed, total in zip(
            _TOTALS,
            ("bulk_s", "bulk_s", "rule_s"),
            ("everybody", "in turn", "by dimension"),
            measured.totals_s,
            strict=True,
        ):
            took = stages[placed]
            known[f"{model['title']}: {method.title}"] = total
            rows[f"{model['title']}: {method.title}"] = {
                **before,
                "sending factors": exposed[fusion],
                "inverting": took["compute_s"],
                "sending inverses": took["finish_s"] - took["compute_s"],
            }
        best = model["ours"]
        rest = best["exposed_s"] + best["compute_s"] - sum(before.values())
        rows[f"{model['title']}: ours"] = {
            **before,
            "sending factors": rest + model["unexplained_s"],
            "inverting": best["inverting_s"],
            "sending inverses": best["sending_s"],
        }
    title = "K-FAC on 64 GPUs (published cluster), all factors in every step"
    chart.stacked(rows, PLOT, title, known)
    model, cost = published.model("resnet50"), network_of(_GANTT_NET).cost(_GANTT_RANKS)
    costs = Costs(_GANTT_RANKS, published.inversion(), cost, cost)
    timelines = {
        found.title: _coarse(timeline_of(found, model, costs))
        for found in (run(SPD_KFAC, model, costs), ours(model, costs))
    }
    title = f"ResNet-50 with all factors in every step, {_GANTT_RANKS} ranks, {_GANTT_NET}"
    chart.gantt(timelines, GANTT, title)


def _coarse(timeline: Timeline, least_s: float = 4e-3) -> Timeline:
    """What follows one another on a resource as one, until that takes so long: for a picture."""
    last: dict[str, Interval] = {}
    found: list[Interval] = []
    for interval in timeline.intervals:
        resource = interval.activity.resource
        before = last.get(resource)
        touches = before is not None and interval.start_s <= before.end_s + 1e-9
        if before is not None and touches and before.end_s - before.start_s < least_s:
            found.remove(before)
            interval = Interval(before.activity, before.start_s, interval.end_s)
        last[resource] = interval
        found.append(interval)
    return Timeline(tuple(found))


if __name__ == "__main__":
    sys.exit(main())
