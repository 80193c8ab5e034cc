"""What the ranks agree on in the first step, before any factor is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch

from aiacc.collectives.objects import broadcast_object, maxima
from aiacc.kfac.distribution import (
    DP,
    KAISA,
    MPD,
    REPLICATE,
    SPD,
    Distribution,
    distribute,
    of_owners,
)
from aiacc.kfac.stage import StageCosts, stage
from aiacc.process_sets import first_rank
from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.fusion import BULK_BYTES, THRESHOLD_BYTES
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.measure import inversion_table, network
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.kfac.solvers import Solver


def check_alike(
    wish: str,
    layers: Sequence[FactoredModule],
    step: int,
    ranks: Ranks,
    number: int,
    costs: StageCosts | None = None,
) -> int:
    """Compare layers, options and the step with the first rank's; what names operations.

    Collective: every rank. Blocks.

    Args:
        wish: The options.
        layers: Of this rank.
        step: Its number.
        ranks: That take part.
        number: Of what this rank thinks is the next K-FAC.
        costs: That the user has given: ranks with others would divide the work otherwise.

    Raises:
        ValueError: On every rank, if some differ.
    """
    if ranks.alone:
        return number
    mine = repr([(f.name, f.shape, str(f.dtype)) for layer in layers for f in layer.factors])
    if costs is not None:
        mine += re.sub(r" at 0x\w+", "", repr(costs))  # of a class that says no more of itself
    digest = hashlib.sha256(f"{wish}\n{mine}".encode()).hexdigest()
    root = first_rank(ranks.process_set)
    first, first_step, number = broadcast_object(
        (digest, step, number), root, "kfac.wish", ranks.process_set
    )
    found = [int(first != digest), int(first_step != step)]
    differ, apart = maxima(found, "kfac.differ", ranks.process_set)
    if differ:
        raise ValueError(
            "K-FAC: the ranks have other layers, options or costs than the first one (expected the "
            f"same everywhere, here {len(layers)} layers, {wish}); pass the same model and "
            "arguments on every rank"
        )
    if apart:
        raise ValueError(
            f"K-FAC: the ranks are not at the same step (step {first_step} on the first one, "
            f"{step} here); call load_state_dict with the same state on every rank"
        )
    return int(number)


def agree_on_uses(
    layers: Sequence[FactoredModule], passes: int, dropped: bool, ranks: Ranks
) -> bool:
    """How often a pass uses each layer: as often as on the rank that uses it most.

    Collective: every rank. Blocks.

    Args:
        layers: Of this rank.
        passes: Of a step.
        dropped: Whether this rank has forgotten passes of this step.
        ranks: That take part.

    Returns:
        Whether this is so from now on. Where some rank has forgotten passes the next step tells,
        in which nothing is forgotten: passes may be dropped once, or in every step.
    """
    factors = [factor for layer in layers for factor in layer.factors]
    found = [int(dropped), *(-(-factor.uses // passes) for factor in factors)]
    if not ranks.alone:
        found = list(map(int, maxima(found, "kfac.uses", ranks.process_set)))
    for factor, number in zip(factors, found[1:], strict=True):
        factor.uses_per_pass = number
    return not found[0]


def agree_on_costs(layers: Sequence[FactoredModule], ranks: Ranks, solver: Solver) -> StageCosts:
    """Measured: inversions on the first rank, operations among all. Collective, blocks."""
    dims = [dim for layer in layers for dim in (layer.described.a_dim, layer.described.g_dim)]
    like = torch.empty(0, dtype=layers[0].a.dtype, device=layers[0].a.device)
    first = first_rank(ranks.process_set)
    table = inversion_table(dims, like, solver) if ranks.index == 0 else None
    table = broadcast_object(table, first, "kfac.inversions", ranks.process_set)
    costs = network(ranks.process_set, ranks.size, like.device)
    return StageCosts(table, costs, gathered=True, square=solver.square)


def execution_of(
    kind: str,
    layers: Sequence[FactoredModule],
    ranks: Ranks,
    costs: StageCosts | None,
    solver: Solver,
    *,
    bulk: bool,
) -> Execution:
    """The distribution of that name at work. One rank does everything, whatever it is called.

    Collective: every rank. Blocks until the ranks are connected that share something.

    Raises:
        ValueError: It is none for so many ranks.
    """
    described = [layer.described for layer in layers]
    if ranks.alone or costs is None:
        plan = of_owners(kind, described, 1, (None,) * (2 * len(layers)))
    else:
        plan = distribute(kind, described, ranks.size, costs)
    most = BULK_BYTES if bulk else THRESHOLD_BYTES
    together = sent_together(layers, plan, costs)
    return Execution(ranks.name, layers, plan, ranks, most, together, solver)


def sent_together(
    layers: Sequence[FactoredModule], plan: Distribution, costs: StageCosts | None
) -> list[list[str]]:
    """Names of factors whose inverses leave together, by when the stage ends. Pure.

    Empty where not all ranks get all inverses.
    """
    works = [work for layer in plan.layers for work in (layer.a, layer.g)]
    owners = tuple(work.owner if work.inverse_to else None for work in works)
    others = {len(work.inverse_to) for work in works if work.inverse_to}
    if costs is None or others != {plan.ranks - 1}:
        return []
    names = [factor.name for layer in layers for factor in layer.factors]
    sent = stage([work.dim for work in works], owners, plan.ranks, costs).sent
    return [[names[number] for number in one.factors] for one in sent]


def check_kind(kind: str) -> None:
    """Raise ValueError unless it is one for some number of ranks."""
    name, _, share = str(kind).partition(":")
    try:
        good = kind in (REPLICATE, MPD, SPD, DP) or (name == KAISA and 0 < float(share) <= 1)
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            f"distribution={kind!r} (expected replicate, mpd, spd, dp, or kaisa: with a share of "
            "the ranks, as in kaisa:0.5)"
        )


def check_gradients(layers: Sequence[FactoredModule], ranks: Ranks) -> None:
    """Whether all ranks have the same gradients, once. Collective, blocks.

    Raises:
        ValueError: On every rank, if not.
    """
    gradients = [layer.weight.grad for layer in layers]
    sums = [0.0 if one is None else float(one.double().sum().nan_to_num()) for one in gradients]
    highest = maxima([*sums, *(-one for one in sums)], "kfac.gradients", ranks.process_set)
    for layer, high, minus_low in zip(layers, highest, highest[len(layers) :], strict=False):
        if high != -minus_low:
            raise ValueError(
                f"K-FAC: the gradient of {layer.name!r} is not the same on all ranks (expected the "
                "mean over them before step()); pass KFAC a DistributedOptimizer of the same "
                "process set, or reduce the gradients before"
            )
