"""Row simulated.planning: published results again, by the planners and their models.

Everything is simulated: traces are modelled from tables of layers (`aiacc.planning.models`), and
networks are constants that others published. A line of the scaling is also what
``aiacc-plan simulate resnet50 --net NET --world 64`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiacc.planning import models, planners
from aiacc.planning.cost import Affine, CostModel
from aiacc.planning.network import PUBLISHED, network_of
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import decoupled_step
from bench.record import Run
from bench.tables import table

#: Of the first table: models and networks.
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
#: Rings of ResNet-50. Links carry 1/1.2 of their rate, as in the authors' simulator.
LINKS = {"10 Gbit/s": "alpha=30e-6,gbit=8.333", "100 Gbit/s": "alpha=5e-6,gbit=83.33"}
WORLDS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
INFOCOM = "infocom"
_STEP_CELLS = {f"{model}:{network}": (model, network) for model, network in STEPS}
_LINK_CELLS = {link.replace(" Gbit/s", "gbit"): link for link in LINKS}
CELLS = (*_STEP_CELLS, *_LINK_CELLS, INFOCOM)

_PLANNERS = (
    *("per_tensor", "single", "threshold(25)", "threshold(64)", "mgwfbp_paper"),
    *("optimal", "optimal_k", "lanes(4)", "decoupled"),
)
_SCALED = ("per_tensor", "threshold(25)", "mgwfbp_paper", "optimal", "lanes(4)", "decoupled")
#: What is not exact stands beside its bound.
_BOUNDED = "lanes(4)"
#: ResNet-50 with 32 images on 8 GPUs (K80) over 10GbE, INFOCOM 2019: images per second on one GPU,
#: and measured speed-ups; a and b of 8 nodes with 10GbE in the authors' scripts of 2021.
_ONE, _RANKS, _A, _B = 76.85, 8, 1.37e-3, 1.66e-9
_MEASURED = {"per_tensor": 6.06, "single": 5.29, "mgwfbp_paper": 7.37}
#: With so much of a and b the gains are those that were measured.
_NEARBY = 0.95
#: One threshold for all buckets, as DeAR has: its default, and those that its tuner may choose.
_DEAR_MIB, _DEAR_TUNED_MIB = 25, range(1, 257)


def measure(cell: str, _: int | None) -> dict[str, Any]:
    """Simulate; seconds, and efficiencies from 0 to 1."""
    about = {"unit": "s", "samples": {}}
    if cell == INFOCOM:
        found = {"measured": _MEASURED, "simulated": _infocom(1.0), "nearby": _infocom(_NEARBY)}
        return {**about, "title": "INFOCOM 2019", "speed_ups": found}
    if cell in _LINK_CELLS:
        link = _LINK_CELLS[cell]
        ranks = {str(world): _efficiency(LINKS[link], world) for world in WORLDS}
        return {**about, "title": link, "network": LINKS[link], "efficiency": ranks}
    model, network = _STEP_CELLS[cell]
    trace, cost = models.trace_of(model), network_of(network).cost()
    plans = {name: planners.plan(name, trace, cost) for name in _PLANNERS}
    tuned = {mib: dear(Problem(trace, cost), mib) for mib in _DEAR_TUNED_MIB}
    best = min(_DEAR_TUNED_MIB, key=tuned.__getitem__)
    return {
        **about,
        "title": trace.model,
        "network": network,
        "constants": list(PUBLISHED[network]),
        "step_s": {name: plan.predicted_s for name, plan in plans.items()},
        "bound_s": plans[_BOUNDED].bound_s,
        "dear": {"step_s": tuned[_DEAR_MIB], "best_s": tuned[best], "best_mib": best},
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
    cost = Affine(share * _A, share * _B)
    trace = models.trace_of("resnet50", compute_s=32 / _ONE)
    return {
        name: _RANKS * trace.compute_s / planners.plan(name, trace, cost).predicted_s
        for name in (*_MEASURED, "optimal")
    }


def _efficiency(net: str, world: int) -> dict[str, float]:
    """Of each planner, and the "bound" of what is not exact."""
    trace = models.trace_of("resnet50")
    cost: CostModel = network_of(net).cost(world)
    plans = {name: planners.plan(name, trace, cost) for name in _SCALED}
    found = {name: trace.compute_s / plan.predicted_s for name, plan in plans.items()}
    return {**found, "bound": trace.compute_s / plans[_BOUNDED].bound_s}


def tables(runs: Sequence[Run]) -> str:
    """Markdown: steps, scaling, and what was measured in 2019. Pure."""
    steps, links, infocom = _kinds(runs)
    dear = f"DeAR {_DEAR_MIB} MiB", "DeAR, best threshold"
    head = ["model", "network", *map(_code, _PLANNERS), *dear]
    scaled = ["link", "ranks", *map(_code, _SCALED)]
    lines = [
        [run["title"], ranks, *_shares(found)]
        for run in links
        for ranks, found in run["efficiency"].items()
    ]
    found = [
        *("**Milliseconds of a step**, simulated:", table(head, [_step(run) for run in steps])),
        *("**Scaling efficiency**, simulated:", table(scaled, lines)),
    ]
    for run in infocom:
        found += ["**Speed-ups on 8 nodes**:", _speed_ups(run["speed_ups"])]
    return "\n\n".join(found)


def _kinds(runs: Sequence[Run]) -> tuple[list[Run], list[Run], list[Run]]:
    kinds = ("step_s", "efficiency", "speed_ups")
    steps, links, infocom = ([run for run in runs if kind in run] for kind in kinds)
    return steps, links, infocom


def _code(name: str) -> str:
    return f"`{name}`"


def _step(run: Run) -> list[str]:
    bound = {_BOUNDED: f" (≥ {run['bound_s'] * 1e3:.0f})"}
    return [
        run["title"],
        run["network"],
        *(f"{seconds * 1e3:.0f}{bound.get(name, '')}" for name, seconds in run["step_s"].items()),
        f"{run['dear']['step_s'] * 1e3:.0f}",
        f"{run['dear']['best_s'] * 1e3:.0f} ({run['dear']['best_mib']} MiB)",
    ]


def _shares(efficiency: Mapping[str, float]) -> list[str]:
    bound = {_BOUNDED: f" (≤ {efficiency['bound']:.0%})"}
    return [f"{efficiency[name]:.0%}{bound.get(name, '')}" for name in _SCALED]


def _speed_ups(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        [_code(name), *(f"{of[name]:.2f}" if name in of else "" for of in found.values())]
        for name in found["simulated"]
    ]
    for name in ("per_tensor", "single"):
        gains = [f"{of['mgwfbp_paper'] / of[name]:.2f}x" for of in found.values()]
        lines.append([f"`mgwfbp_paper` over `{name}`", *gains])
    head = ("planner", "measured by the authors", "simulated", "simulated, a and b 5 % smaller")
    return table(head, lines)
