"""``python -m bench.planning``: published results again, by the planners and their models.

Everything here is simulated: traces are modelled from tables of layers (`aiacc.planning.models`),
and networks are constants that others published. Writes bench/results/planning.json, the pictures
beside it and, with ``--write``, the tables of docs/planning.md; ``--check`` compares those with the
file. A row of a scaling table is also ``aiacc-plan simulate resnet50 --net NET --world 64``, by the
``net`` that the row has in the file.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from aiacc.planning import chart, graphs, models, planners
from aiacc.planning.cost import Affine, CostModel
from aiacc.planning.network import PUBLISHED, network_of
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import decoupled_step
from bench.machine import ROOT, commit
from bench.report import between_markers

RESULT = ROOT / "bench" / "results" / "planning.json"
SCALING = {
    "10 Gbit/s": RESULT.with_name("planning_scaling.svg"),
    "100 Gbit/s": RESULT.with_name("planning_scaling_100.svg"),
}
GANTT = RESULT.with_name("planning_gantt.svg")
STEPS_PLOT = RESULT.with_name("planning_steps.svg")
INFOCOM = RESULT.with_name("planning_infocom.svg")
PAGE = ROOT / "docs" / "planning.md"

_PLANNERS = (
    "per_tensor",
    "single",
    "threshold(25)",
    "threshold(64)",
    "mgwfbp_paper",
    "optimal",
    "optimal_k",
    "lanes(4)",
    "decoupled",
)
#: What is not exact stands beside its bound.
_BOUNDED = "lanes(4)"
_BOUND = f"{_BOUNDED}, bound"
#: Networks and models of the first table.
STEPS = (
    ("resnet50", "10gbe-64"),
    ("resnet50", "10gbe-16"),
    ("resnet50", "100gbib-64"),
    ("resnet152", "10gbe-64"),
    ("resnet152", "100gbib-64"),
    ("densenet201", "10gbe-64"),
    ("bert_base", "10gbe-64"),
    ("bert_base", "10gbe-16"),
    ("bert_base", "100gbib-64"),
)
#: ResNet-50 with 32 images on 8 GPUs (K80) over 10GbE, INFOCOM 2019: images per second on one GPU,
#: and measured speed-ups; a and b of 8 nodes with 10GbE in the authors' scripts of 2021.
_INFOCOM = {"one": 76.85, "a": 1.37e-3, "b": 1.66e-9, "ranks": 8}
_INFOCOM_MEASURED = {"per_tensor": 6.06, "single": 5.29, "mgwfbp_paper": 7.37}
#: With so much of a and b the gains are those that were measured.
_NEARBY = 0.95
#: One threshold for all buckets, as DeAR has: its default, and those that its tuner may choose.
_DEAR_MIB, _DEAR_TUNED_MIB = 25, range(1, 257)
#: Plans that take longer, by how much over `optimal`, are left out of the picture.
_SHOWN = 2.5
#: Rings of ResNet-50 to 2,048 GPUs. Links carry 1/1.2 of their rate, as in the authors' simulator.
_LINKS = {"10 Gbit/s": "alpha=30e-6,gbit=8.333", "100 Gbit/s": "alpha=5e-6,gbit=83.33"}
_WORLDS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_SCALED = ("per_tensor", "threshold(25)", "mgwfbp_paper", "optimal", "lanes(4)", "decoupled")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.planning", description=__doc__)
    parser.add_argument("--write", action="store_true", help="the tables of docs/planning.md, too")
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
    steps = []
    for model, network in STEPS:
        trace, cost = models.trace_of(model), network_of(network).cost()
        plans = {name: planners.plan(name, trace, cost) for name in _PLANNERS}
        tuned = {mib: dear(Problem(trace, cost), mib) for mib in _DEAR_TUNED_MIB}
        best = min(_DEAR_TUNED_MIB, key=tuned.__getitem__)
        steps.append(
            {
                "model": trace.model,
                "network": network,
                "step_s": {name: plan.predicted_s for name, plan in plans.items()},
                "buckets": {name: len(plan.buckets) for name, plan in plans.items()},
                "lanes_bound_s": plans[_BOUNDED].bound_s,
                "dear": {"step_s": tuned[_DEAR_MIB], "best_s": tuned[best], "best_mib": best},
            }
        )
    return {
        "kind": "simulated",
        "commit": commit(),
        "networks": {name: list(PUBLISHED[name]) for _, name in STEPS},
        "steps": steps,
        "infocom": {
            **_INFOCOM,
            "measured": _INFOCOM_MEASURED,
            "simulated": _infocom(1.0),
            "simulated_nearby": _infocom(_NEARBY),
        },
        "scaling": [
            {"link": link, "net": net, "world": world, "efficiency": _efficiency(net, world)}
            for link, net in _LINKS.items()
            for world in _WORLDS
        ],
    }


def dear(problem: Problem, mib: float) -> float:
    """Seconds of a decoupled step whose buckets are filled in forward order up to a threshold."""
    ends, filled = [len(problem)], 0.0
    for number in range(len(problem) - 1, -1, -1):
        size = problem.trace.tensors[number].bytes
        if filled and filled + size > mib * (1 << 20):
            ends.append(number + 1)
            filled = 0.0
        filled += size
    return decoupled_step(problem, ends[::-1])


def _infocom(share: float) -> dict[str, float]:
    return _infocom_with(Affine(share * _INFOCOM["a"], share * _INFOCOM["b"]))


def _infocom_with(cost: CostModel) -> dict[str, float]:
    trace = models.trace_of("resnet50", compute_s=32 / _INFOCOM["one"])
    return {
        name: 8 * trace.compute_s / planners.plan(name, trace, cost).predicted_s
        for name in ("per_tensor", "single", "mgwfbp_paper", "optimal")
    }


def _efficiency(net: str, world: int) -> dict[str, float]:
    trace = models.trace_of("resnet50")
    cost: CostModel = network_of(net).cost(world)
    plans = {name: planners.plan(name, trace, cost) for name in _SCALED}
    found = {name: trace.compute_s / plan.predicted_s for name, plan in plans.items()}
    return found | {_BOUND: trace.compute_s / plans[_BOUNDED].bound_s}


def _draw(report: dict[str, Any]) -> None:
    for link, net in _LINKS.items():
        rows = [row for row in report["scaling"] if row["link"] == link]
        lines = {name: [row["efficiency"][name] for row in rows] for name in (*_SCALED, _BOUND)}
        title = f"ResNet-50 (modelled), ring, {link} ({net})"
        chart.scaling([row["world"] for row in rows], lines, SCALING[link], title)
    trace, cost = models.trace_of("resnet50"), network_of("10gbe-64").cost()
    timelines = {
        name: graphs.simulated([trace], planners.plan(name, trace, cost), cost)
        for name in ("threshold(25)", "mgwfbp_paper", "optimal")
    }
    chart.gantt(timelines, GANTT, "ResNet-50 (modelled), 64 ranks on 10GbE")
    slowdowns = {
        f"{row['model']}, {row['network']}": {
            name: seconds / row["step_s"]["optimal"]
            for name, seconds in row["step_s"].items()
            if seconds <= _SHOWN * row["step_s"]["optimal"]
        }
        for row in report["steps"]
    }
    title = "Published networks, models from their tables"
    axis = f"step over that of optimal, up to {_SHOWN:g} (simulated)"
    chart.dots(slowdowns, STEPS_PLOT, title, axis)
    found = report["infocom"]
    shown = {
        "measured by the authors": found["measured"],
        "simulated": found["simulated"],
        "simulated, a and b 5 % smaller": found["simulated_nearby"],
    }
    title = "ResNet-50 (modelled), 8 nodes on 10GbE, INFOCOM 2019"
    chart.dots(shown, INFOCOM, title, "speed-up on 8 GPUs")


def with_tables(page: str, report: dict[str, Any]) -> str:
    """``page`` with the tables of a report."""
    for mark, table in (
        ("planning:steps", _steps_table(report)),
        ("planning:infocom", _infocom_table(report)),
        ("planning:scaling", _scaling_table(report)),
    ):
        page = between_markers(page, table, PAGE.name, mark)
    return page


def _steps_table(report: dict[str, Any]) -> str:
    rows = [
        (
            row["model"],
            row["network"],
            *(
                f"{row['step_s'][name] * 1e3:.0f}"
                + (f" (≥ {row['lanes_bound_s'] * 1e3:.0f})" if name == _BOUNDED else "")
                for name in _PLANNERS
            ),
            f"{row['dear']['step_s'] * 1e3:.0f}",
            f"{row['dear']['best_s'] * 1e3:.0f} ({row['dear']['best_mib']} MiB)",
        )
        for row in report["steps"]
    ]
    dear = f"DeAR {_DEAR_MIB} MiB", "DeAR, best threshold"
    return _table(("model", "network", *map(_code, _PLANNERS), *dear), rows)


def _code(name: str) -> str:
    return f"`{name}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _infocom_table(report: dict[str, Any]) -> str:
    found = report["infocom"]
    measured, exact, nearby = (
        found[name] for name in ("measured", "simulated", "simulated_nearby")
    )
    rows = [
        (_code(name), f"{measured.get(name, '')}", f"{exact[name]:.2f}", f"{nearby[name]:.2f}")
        for name in exact
    ]
    rows += [
        (
            f"`mgwfbp_paper` over `{name}`",
            *(f"{of['mgwfbp_paper'] / of[name]:.2f}x" for of in (measured, exact, nearby)),
        )
        for name in ("per_tensor", "single")
    ]
    head = ("planner", "speed-up, measured by the authors", "simulated", "a and b 5 % smaller")
    return _table(head, rows)


def _scaling_table(report: dict[str, Any]) -> str:
    rows = [
        (
            row["link"],
            str(row["world"]),
            *(
                f"{row['efficiency'][name]:.0%}"
                + (f" (≤ {row['efficiency'][_BOUND]:.0%})" if name == _BOUNDED else "")
                for name in _SCALED
            ),
        )
        for row in report["scaling"]
    ]
    return _table(("link", "ranks", *map(_code, _SCALED)), rows)


if __name__ == "__main__":
    sys.exit(main())
