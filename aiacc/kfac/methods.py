"""Published variants of distributed K-FAC, and ours, as steps of the simulator. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiacc.kfac.modelled import factor_names, kfac_trace
from aiacc.kfac.placement import by_dimension, in_turn, longest_first, place
from aiacc.kfac.stage import Stage, StageCosts, stage
from aiacc.kfac.step import (
    HOROVOD,
    INTERLEAVED,
    Bucket,
    Costs,
    Step,
    bulk_buckets,
    hiding,
    plan_buckets,
    step,
)
from aiacc.planning.division.placement import Owners
from aiacc.planning.models import modelled
from aiacc.planning.models.kronecker import layers_of
from aiacc.planning.models.layers import Parameter
from aiacc.planning.trace import Trace

_PUBLISHED_RULE = "mgwfbp_paper"


@dataclass(frozen=True)
class Model:
    """A network and what one GPU takes for it."""

    title: str
    parameters: Sequence[Parameter]
    compute_s: float
    factor_s: float

    @property
    def trace(self) -> Trace:
        """Of a step whose factors may leave during the passes."""
        return kfac_trace(self.title, self.parameters, self.compute_s, self.factor_s)

    @property
    def layer_names(self) -> list[str]:
        """Of those that have factors."""
        return [layer.name for layer in layers_of(self.parameters)]

    @property
    def dims(self) -> list[int]:
        """Of A and G of each layer in turn."""
        return [dim for one in layers_of(self.parameters) for dim in (one.a_dim, one.g_dim)]


@dataclass(frozen=True)
class Method:
    """A way to distribute K-FAC, as published: inverses are sent when all are computed."""

    title: str
    pipelined: bool
    #: See `step.plan_buckets`.
    fusion: str
    #: "replicate", "in_turn", "by_dimension"
    placement: str


D_KFAC = Method("D-KFAC", False, HOROVOD, "replicate")
MPD_KFAC = Method("MPD-KFAC", False, HOROVOD, "in_turn")
SPD_KFAC = Method("SPD-KFAC", True, _PUBLISHED_RULE, "by_dimension")
#: The paper's ablation, with D_KFAC and SPD_KFAC as its ends.
PIPELINE_ALONE = Method("pipeline alone", True, _PUBLISHED_RULE, "replicate")
PLACEMENT_ALONE = Method("placement alone", False, HOROVOD, "by_dimension")
OURS = "ours"


@dataclass(frozen=True)
class Found:
    """How a method does a step."""

    title: str
    step: Step
    #: Of the factors, and of the gradients.
    buckets: tuple[Bucket, ...]
    #: Of A and G of each layer in turn.
    owners: Owners


def run(method: Method, model: Model, costs: Costs) -> Found:
    """A published variant."""
    dims, ranks = model.dims, costs.ranks
    owners: Owners = (None,) * len(dims)
    if method.placement == "in_turn":
        owners = in_turn(dims, ranks)
    elif method.placement == "by_dimension":
        owners = by_dimension(dims, ranks)
    after = stage(dims, owners, ranks, StageCosts(costs.inversion, costs.single, overlap=0.0))
    if method.pipelined:
        trace = model.trace
        buckets = plan_buckets(hiding(trace, costs.overlap), costs, method.fusion)
        whole = step(trace, buckets, after, costs.overlap)
    else:
        # When all gradients are there factors are built, and then sent.
        passes, gradients = _sgd(model, costs, after)
        factors = bulk_buckets(model.trace, costs)
        buckets = [*gradients, *factors]
        whole = Step(
            passes.compute_s + model.factor_s,
            passes.exposed_s + sum(bucket.seconds for bucket in factors),
            after,
        )
    return Found(method.title, whole, tuple(buckets), owners)


def ours(model: Model, costs: Costs, *, reduces: bool = True, gathers: bool = True) -> Found:
    """The shortest step of some placements, each with the exact plan for its factors.

    Differences to SPD-KFAC: gradients and factors are planned together and exactly, factors of one
    owner are reduced to it alone (``reduces``), inverses that wait travel together (``gathers``)
    while others are inverted, and the placement is by when the stage ends.
    """
    dims, ranks = model.dims, costs.ranks
    trace = model.trace
    hidden = hiding(trace, costs.overlap)
    # Several inverses as one all-gather, or a broadcast of each.
    ways = [StageCosts(costs.inversion, costs.single, overlap=costs.overlap)]
    if gathers:
        ways.append(StageCosts(costs.inversion, costs.fused, True, costs.overlap))
    candidates: dict[Owners, StageCosts] = {}
    for way in ways:
        every = longest_first(dims, ranks, costs.inversion) if ranks > 1 else (None,) * len(dims)
        for owners in (place(dims, ranks, way).owners, every):
            before = candidates.get(owners)
            if (
                before is None
                or stage(dims, owners, ranks, way).finish_s
                < stage(dims, owners, ranks, before).finish_s
            ):
                candidates[owners] = way
    names = [name for layer in model.layer_names for name in factor_names(layer)]
    found = []
    for owners, way in candidates.items():
        owner_of = dict(zip(names, owners, strict=True)) if reduces else None
        buckets = plan_buckets(hidden, costs, INTERLEAVED, owner_of)
        whole = step(trace, buckets, stage(dims, owners, ranks, way), costs.overlap)
        found.append(Found(OURS, whole, tuple(buckets), owners))
    return min(found, key=lambda one: one.step.seconds)


def sgd_s(model: Model, costs: Costs) -> float:
    """A step of synchronous SGD with gradients in `HOROVOD`'s buckets."""
    return _sgd(model, costs, Stage(0.0, 0.0))[0].seconds


def exposed_factors_s(method: Method, model: Model, costs: Costs) -> float:
    """By how much the communication of factors makes the step longer, as the paper counts it."""
    found = run(method, model, costs).step
    return found.compute_s + found.exposed_s - sgd_s(model, costs) - model.factor_s


def _sgd(model: Model, costs: Costs, after: Stage) -> tuple[Step, list[Bucket]]:
    trace = modelled(model.title, model.parameters, model.compute_s)
    buckets = plan_buckets(hiding(trace, costs.overlap), costs, HOROVOD)
    return step(trace, buckets, after, costs.overlap), buckets
