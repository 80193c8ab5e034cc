"""Row simulated.kfac: SPD-KFAC's published results again, by the simulator, and ours beside.

Everything is simulated; `aiacc.kfac.published` says what is taken as published, and which two
quantities are calibrated.
"""

from __future__ import annotations

import dataclasses
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
from bench.record import Run
from bench.tables import table

CONSTANTS = "constants"
CELLS = (*published.MEASURED, CONSTANTS)
_TOTALS = (D_KFAC, MPD_KFAC, SPD_KFAC)
#: Those, and SPD-KFAC without one of its parts.
_STEPS = {
    D_KFAC.title: D_KFAC,
    "pipeline alone": PIPELINE_ALONE,
    "placement alone": PLACEMENT_ALONE,
    MPD_KFAC.title: MPD_KFAC,
    SPD_KFAC.title: SPD_KFAC,
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
    "ours": "**Ours without some of its parts**, simulated seconds of a step:",
}

_CALIBRATED = (
    "**Calibrated**: an inversion takes {c0:.3g} + {c2:.3g} d² + {c3:.3g} d³ seconds, fitted to "
    "the four times in which one GPU inverts all factors of a model; {overlap:g} of the "
    "computation hides communication, fitted to the four exposed times of factors in buckets of "
    "64 MiB."
)

#: What a table has in a cell: what was simulated, and what was published, if it was.
Value = float | int | list[float]


def measure(cell: str, _: int | None) -> dict[str, Any]:
    """Simulate one model on the published cluster, or what other constants would give."""
    about = {"unit": "s", "samples": {}}
    if cell == CONSTANTS:
        calibrated = {**dataclasses.asdict(published.inversion()), "overlap": published.OVERLAP}
        return {**about, "title": "constants", "calibrated": calibrated, "errors": _errors()}
    model, costs = published.model(cell), published.costs()
    return {**about, "title": model.title, "tables": _tables(cell, costs)}


def _tables(name: str, costs: Costs) -> dict[str, dict[str, Value]]:
    measured, model = published.MEASURED[name], published.model(name)
    extra_s = published.unexplained_s(name)
    alone_s = measured.pipeline_alone_s, measured.placement_alone_s
    known = measured.totals_s[0], *alone_s, *measured.totals_s[1:]
    totals = dict(zip(_STEPS, _totals(name, tuple(_STEPS.values()), costs), strict=True))
    less = {
        title: ours(model, costs, **parts).step.seconds + extra_s for title, parts in _LESS.items()
    }
    return {
        "totals": {
            **{title: [totals[title], one] for title, one in zip(_STEPS, known, strict=True)},
            "ours": less["all"],
            "ours / D-KFAC": less["all"] / totals[D_KFAC.title],
            "ours / SPD-KFAC": less["all"] / totals[SPD_KFAC.title],
            "not explained": extra_s,
        },
        "factors": {
            title: [exposed_factors_s(way, model, costs), *([getattr(measured, at)] if at else [])]
            for title, (way, at) in _FUSIONS.items()
        },
        "stages": _stages(name, costs),
        "ours": less,
    }


def _totals(name: str, methods: Sequence[Method], costs: Costs) -> list[float]:
    model = published.model(name)
    extra_s = published.MEASURED[name].sgd_s - sgd_s(model, costs)
    return [run(method, model, costs).step.seconds + extra_s for method in methods]


def _stages(name: str, costs: Costs) -> dict[str, Value]:
    measured, dims = published.MEASURED[name], published.model(name).dims
    found: dict[str, Value] = {}
    behind = StageCosts(costs.inversion, costs.single, overlap=0.0)
    for title, owners, known_s in (
        ("everybody", (None,) * len(dims), measured.inversion_s),
        ("in turn", in_turn(dims, costs.ranks), sum(measured.in_turn_s)),
        ("by dimension", by_dimension(dims, costs.ranks), sum(measured.placed_s)),
    ):
        found[title] = [stage(dims, owners, costs.ranks, behind).finish_s, known_s]
    for title, way in (
        ("one by one", StageCosts(costs.inversion, costs.single, overlap=costs.overlap)),
        ("gathered", StageCosts(costs.inversion, costs.fused, True, costs.overlap)),
    ):
        placed = place(dims, costs.ranks, way)
        found[f"ours, {title}"] = stage(dims, placed.owners, costs.ranks, way).finish_s
        found[f"owned, {title}"] = sum(owner is not None for owner in placed.owners)
    return {**found, "bound of the last": placed.bound_s}


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
            found.append(_CALIBRATED.format(**one["calibrated"]))
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
