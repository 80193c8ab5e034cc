"""``python -m bench.kfac``: SPD-KFAC's published results again, by the simulator, and ours beside.

Everything here is simulated; `aiacc.kfac.published` says what is taken as published and which two
quantities are calibrated. Writes bench/results/kfac.json, the pictures beside it and, with
``--write``, the tables of docs/kfac_simulated.md; ``--check`` compares those with the file.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
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
from bench.machine import ROOT, commit
from bench.report import between_markers

RESULT = ROOT / "bench" / "results" / "kfac.json"
PLOT = RESULT.with_name("kfac.svg")
GANTT = RESULT.with_name("kfac_gantt.svg")
PAGE = ROOT / "docs" / "kfac_simulated.md"

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
        page = PAGE.read_text()
        return 0 if page == with_tables(page, json.loads(RESULT.read_text())) else 1
    report = simulated()
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    _draw(report)
    if options.write:
        PAGE.write_text(with_tables(PAGE.read_text(), report))
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


def with_tables(page: str, report: dict[str, Any]) -> str:
    """``page`` with the tables of a report."""
    for mark, table in (
        ("kfac:calibrated", _table(_calibrated_rows(report))),
        ("kfac:totals", _table(_total_rows(report))),
        ("kfac:factors", _table(_factor_rows(report))),
        ("kfac:stages", _table(_stage_rows(report))),
        ("kfac:ablation", _table(_ablation_rows(report))),
        ("kfac:ours", _table(_ours_rows(report))),
        ("kfac:sensitivity", _table(_sensitivity_rows(report))),
    ):
        page = between_markers(page, table, PAGE.name, mark)
    return page


def _calibrated_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    found = report["calibrated"]
    yield ("quantity", "value", "fitted to")
    polynomial = found["inversion"]
    yield (
        "seconds of an inversion, c0 + c2 d² + c3 d³",
        ", ".join(f"{name} = {value:.3g}" for name, value in polynomial.items()),
        "the four times in which one GPU inverts all factors of a model",
    )
    yield (
        "share of the computation that hides communication",
        f"{found['overlap']:g}",
        "the four exposed times of factors in buckets of 64 MiB",
    )


def _total_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    titles = (method.title for method in _TOTALS)
    yield ("model", *titles, "ours", "ours / D-KFAC", "not explained")
    for model in report["models"].values():
        best = model["ours_s"]["all"]
        yield (
            model["title"],
            *map(_beside, model["totals_s"], model["published_totals_s"]),
            f"{best:.3f}",
            f"{best / model['totals_s'][0]:.2f}",
            f"{model['unexplained_s']:.3f}",
        )


def _factor_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield (
        "model",
        "behind the passes",
        "one by one",
        "64 MiB (fitted)",
        "the paper's rule",
        "exact, with gradients",
    )
    for model in report["models"].values():
        known = model["published_exposed_factors_s"]
        found = model["exposed_factors_s"]
        yield (
            model["title"],
            *(_beside(found[field], known[field]) for field in known),
            f"{found['exact_s']:.3f}",
        )


def _stage_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    first = next(iter(report["models"].values()))
    yield ("model", *first["stages_s"], "bound of the last")
    for model in report["models"].values():
        cells = []
        for row in model["stages_s"].values():
            if "published_s" in row:
                cells.append(_beside(row["finish_s"], row["published_s"][1]))
            else:
                cells.append(f"{row['finish_s']:.3f} ({row['owned']} owned)")
        yield (model["title"], *cells, f"{row['bound_s']:.3f}")


def _ablation_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("model", "neither", "pipeline", "placement", "both")
    for model in report["models"].values():
        yield (
            model["title"],
            *map(_beside, model["ablation_s"], model["published_ablation_s"]),
        )


def _ours_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("model", *_LESS, "SPD-KFAC")
    for model in report["models"].values():
        yield (
            model["title"],
            *(f"{model['ours_s'][title]:.3f}" for title in _LESS),
            f"{model['totals_s'][2]:.3f}",
        )


def _sensitivity_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("with", *(method.title for method in _TOTALS))
    for title, errors in report["sensitivity"].items():
        yield (title, *(f"{errors[method.title]:+.1%}" for method in _TOTALS))


def _beside(simulated_s: float, published_s: float) -> str:
    if not published_s:
        return f"{simulated_s:.3f}"
    return f"{simulated_s:.3f} / {published_s:.3f} ({simulated_s / published_s - 1:+.1%})"


def _table(rows: Iterator[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest))


if __name__ == "__main__":
    sys.exit(main())
