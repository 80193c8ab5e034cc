"""Row simulated.kfac: SPD-KFAC's published results again, by the simulator, and ours beside.

Everything is simulated; `aiacc.kfac.published` says what is taken as published, and which two
quantities are calibrated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
from aiacc.kfac.stage import Stage, StageCosts, stage
from aiacc.kfac.step import HOROVOD, INTERLEAVED, PER_TENSOR, Costs
from bench.plots import OURS, PEERS, panels
from bench.record import Run
from bench.tables import table

CONSTANTS = "constants"
CELLS = (*published.MEASURED, CONSTANTS)
_TOTALS = (D_KFAC, MPD_KFAC, SPD_KFAC)
#: In the order of the paper: without and with the pipeline, without and with the placement.
_ABLATION = {
    "neither": D_KFAC,
    "pipeline": PIPELINE_ALONE,
    "placement": PLACEMENT_ALONE,
    "both": SPD_KFAC,
}
#: Ways in which factors travel, and the field that has what was published.
_FUSIONS = {
    "behind the passes": (D_KFAC, "bulk_s"),
    "one by one": (dataclasses.replace(PIPELINE_ALONE, fusion=PER_TENSOR), "per_tensor_s"),
    "64 MiB (fitted)": (dataclasses.replace(PIPELINE_ALONE, fusion=HOROVOD), "threshold_s"),
    "the paper's rule": (PIPELINE_ALONE, "rule_s"),
    "exact, with gradients": (dataclasses.replace(PIPELINE_ALONE, fusion=INTERLEAVED), ""),
}
#: Parts of ours that are left out.
_LESS = {
    "all": {},
    "no reduction to owners": {"reduces": False},
    "no gathered inverses": {"gathers": False},
    "neither": {"reduces": False, "gathers": False},
}
#: Tables, by what stands above them.
_TABLES = {
    "totals": "**Steps**, seconds, simulated / published (error):",
    "factors": "**Factors on their way**, seconds by which sending them makes the step longer:",
    "stages": "**Inverses**, seconds of the stage in which factors are inverted and inverses sent:",
    "ablation": "**Ablation of SPD-KFAC**, seconds of a step:",
    "ours": "**Ours without some of its parts**, simulated seconds of a step:",
}

#: What a table has in a cell: what was simulated, and what was published, if it was.
Value = float | int | list[float]


def measure(cell: str, _: int | None) -> dict[str, Any]:
    """Simulate one model on the published cluster, or what other constants would give."""
    about = {"unit": "s", "samples": {}}
    if cell == CONSTANTS:
        return {**about, "title": "constants", "calibrated": _calibrated(), "errors": _errors()}
    model, costs = published.model(cell), published.costs()
    return {**about, "title": model.title, "tables": _tables(cell, costs), "parts": _parts(cell)}


def _tables(name: str, costs: Costs) -> dict[str, dict[str, Value]]:
    measured, model = published.MEASURED[name], published.model(name)
    extra_s = published.unexplained_s(name)
    totals = _totals(name, _TOTALS, costs)
    less = {
        title: ours(model, costs, **parts).step.seconds + extra_s for title, parts in _LESS.items()
    }
    both = (measured.totals_s[0], measured.pipeline_alone_s)
    ablation = zip(
        _ABLATION,
        _totals(name, tuple(_ABLATION.values()), costs),
        (*both, measured.placement_alone_s, measured.totals_s[2]),
        strict=True,
    )
    return {
        "totals": {
            **{
                method.title: [total, known]
                for method, total, known in zip(_TOTALS, totals, measured.totals_s, strict=True)
            },
            "ours": less["all"],
            "ours / D-KFAC": less["all"] / totals[0],
            "ours / SPD-KFAC": less["all"] / totals[2],
            "not explained": extra_s,
        },
        "factors": {
            title: [exposed_factors_s(way, model, costs), *([getattr(measured, at)] if at else [])]
            for title, (way, at) in _FUSIONS.items()
        },
        "stages": _stages(name, costs),
        "ablation": {title: [total, known] for title, total, known in ablation},
        "ours": {**less, SPD_KFAC.title: totals[2]},
    }


def _totals(name: str, methods: Sequence[Method], costs: Costs) -> list[float]:
    model = published.model(name)
    extra_s = published.MEASURED[name].sgd_s - sgd_s(model, costs)
    return [run(method, model, costs).step.seconds + extra_s for method in methods]


def _stages(name: str, costs: Costs) -> dict[str, Value]:
    measured, dims = published.MEASURED[name], published.model(name).dims
    known = (measured.inversion_s, sum(measured.in_turn_s), sum(measured.placed_s))
    took = zip(_published_stages(name, costs).items(), known, strict=True)
    found: dict[str, Value] = {title: [one.finish_s, seconds] for (title, one), seconds in took}
    for title, way in (
        ("one by one", StageCosts(costs.inversion, costs.single, overlap=costs.overlap)),
        ("gathered", StageCosts(costs.inversion, costs.fused, True, costs.overlap)),
    ):
        placed = place(dims, costs.ranks, way)
        found[f"ours, {title}"] = stage(dims, placed.owners, costs.ranks, way).finish_s
        found[f"owned, {title}"] = sum(owner is not None for owner in placed.owners)
    return {**found, "bound of the last": placed.bound_s}


def _published_stages(name: str, costs: Costs) -> dict[str, Stage]:
    """By where inverses are computed, in the order of the methods."""
    dims, behind = (
        published.model(name).dims,
        StageCosts(costs.inversion, costs.single, overlap=0.0),
    )
    owners = {
        "everybody": (None,) * len(dims),
        "in turn": in_turn(dims, costs.ranks),
        "by dimension": by_dimension(dims, costs.ranks),
    }
    return {title: stage(dims, who, costs.ranks, behind) for title, who in owners.items()}


def _parts(name: str) -> dict[str, dict[str, float]]:
    """Seconds of the parts of a step, one behind the other."""
    measured, model, costs = published.MEASURED[name], published.model(name), published.costs()
    before = {"passes and gradients": measured.sgd_s, "building factors": measured.factor_s}
    bulk, rule = (exposed_factors_s(way, model, costs) for way in (D_KFAC, PIPELINE_ALONE))
    found = {}
    stages = _published_stages(name, costs).values()
    for method, sending, took in zip(_TOTALS, (bulk, bulk, rule), stages, strict=True):
        found[method.title] = {
            **before,
            "sending factors": sending,
            "inverting": took.compute_s,
            "sending inverses": took.finish_s - took.compute_s,
        }
    best = ours(model, costs).step
    sent = best.exposed_s + best.compute_s - sum(before.values()) + published.unexplained_s(name)
    found["ours"] = {
        **before,
        "sending factors": sent,
        "inverting": best.stage.compute_s,
        "sending inverses": best.stage.finish_s - best.stage.compute_s,
    }
    return found


def _calibrated() -> dict[str, list[str]]:
    polynomial = dataclasses.asdict(published.inversion())
    return {
        "seconds of an inversion, c0 + c2 d² + c3 d³": [
            ", ".join(f"{name} = {value:.3g}" for name, value in polynomial.items()),
            "the four times in which one GPU inverts all factors of a model",
        ],
        "share of the computation that hides communication": [
            f"{published.OVERLAP:g}",
            "the four exposed times of factors in buckets of 64 MiB",
        ],
    }


def _errors() -> dict[str, dict[str, float]]:
    """With one constant changed at a time: the error of a total that is furthest from 0."""
    base, low, high = published.costs(), published.OVERLAP / 2, published.OVERLAP * 2
    clusters = {
        "as calibrated": base,
        "overlap 0: nothing is hidden": published.costs(0.0),
        f"overlap {low:g}": published.costs(low),
        f"overlap {high:g}": published.costs(high),
        "overlap 1: all may be hidden": published.costs(1.0),
        "12.2 ms for single tensors, too": dataclasses.replace(base, single=published.FUSED),
        "0.93 ms for buckets, too": dataclasses.replace(base, fused=published.SINGLE),
        "the published exponential": dataclasses.replace(base, inversion=PUBLISHED_EXPONENTIAL),
    }
    found: dict[str, dict[str, float]] = {title: {} for title in clusters}
    for title, costs in clusters.items():
        for name, measured in published.MEASURED.items():
            totals = _totals(name, _TOTALS, costs)
            for method, total, known in zip(_TOTALS, totals, measured.totals_s, strict=True):
                before = found[title].get(method.title, 0.0)
                found[title][method.title] = max(before, total / known - 1, key=abs)
    return found


def tables(runs: Sequence[Run]) -> str:
    """Markdown: a line for each model; calibrated constants, and others. Pure."""
    models = [one for one in runs if one["cell"] != CONSTANTS]
    found = []
    for name, caption in _TABLES.items():
        lines = [[one["title"], *map(_text, one["tables"][name].values())] for one in models]
        found += [caption, table(["model", *models[0]["tables"][name]], lines)]
    for one in runs:
        if one["cell"] == CONSTANTS:
            calibrated = [[name, *both] for name, both in one["calibrated"].items()]
            found += ["**Calibrated**:", table(["quantity", "value", "fitted to"], calibrated)]
            lines = [
                [name, *(f"{error:+.1%}" for error in errors.values())]
                for name, errors in one["errors"].items()
            ]
            methods = [method.title for method in _TOTALS]
            found += [
                "**If the constants were others**, largest error of four totals:",
                table(["with", *methods], lines),
            ]
    return "\n\n".join(found)


def _text(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    simulated, *known = value if isinstance(value, list) else [value]
    beside = [f" / {one:.3f} ({simulated / one - 1:+.1%})" for one in known]
    return f"{simulated:.3f}{''.join(beside)}"


def plot(runs: Sequence[Run]) -> Any:
    """A panel for each model: the parts of a step, and what was published of the whole."""
    models = [one for one in runs if one["cell"] != CONSTANTS]
    figure, axes = panels(len(models), columns=2, height=2.4)
    for axis, one in zip(axes, models, strict=True):
        _draw(axis, one["parts"], one["tables"]["totals"])
        axis.set_title(f"{one['title']}, 64 GPUs (simulated)", fontsize=8)
    axes[0].legend(fontsize=6, loc="center right")
    return figure


def _draw(axis: Any, parts: Mapping[str, Mapping[str, float]], totals: Mapping[str, Value]) -> None:
    before = [0.0] * len(parts)
    colors = [OURS if title == "ours" else PEERS for title in parts]
    for number, part in enumerate(parts["ours"]):
        values, alpha = [one[part] for one in parts.values()], 1 - 0.19 * number
        axis.barh(range(len(parts)), values, left=before, color=colors, alpha=alpha, label=part)
        before = [start + value for start, value in zip(before, values, strict=True)]
    known = [value[1] for value in totals.values() if isinstance(value, list)]
    axis.plot(known, range(len(known)), "k|", markersize=14, label="published total")
    axis.set_yticks(range(len(parts)), list(parts), size=7)
    axis.invert_yaxis()
    axis.set_xlim(right=1.7 * max(before))
    axis.set_xlabel("seconds of a step, all factors and inverses in it")
