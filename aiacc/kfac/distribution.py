"""Who reduces, inverts, receives and preconditions what: the ways to distribute K-FAC. Pure.

============ ======================================================================================
replicate    D-KFAC: everybody has all factors and inverts all of them.
mpd          MPD-KFAC: each factor has an owner, who alone gets it, and sends its inverse to all.
spd          SPD-KFAC: as mpd, but what is quicker inverted than sent is inverted by everybody.
kaisa:F      KAISA (Pauloski et al., SC 2021): a share F of the ranks has the inverses of a layer
             and preconditions its gradient, which the others get from them.
dp           DP-KFAC (Zhang et al., 2022): a layer's owner builds both factors from its own samples
             alone, and sends the preconditioned gradient. Another estimator: no factor travels.
============ ======================================================================================

All but dp precondition with the same numbers. Gradients are reduced among all ranks in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiacc.kfac.costs import packed_elements
from aiacc.kfac.placement import longest_first, place
from aiacc.kfac.stage import StageCosts
from aiacc.planning.division.placement import Owners
from aiacc.planning.models.kronecker import Layer

REPLICATE = "replicate"
MPD = "mpd"
SPD = "spd"
KAISA = "kaisa"
DP = "dp"

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What happens to a factor."""

    dim: int
    #: Ranks that get its mean over all ranks; nobody: each uses that of its own samples.
    reduced_to: Ranks
    inverted_by: Ranks
    #: Ranks that get the inverse from `inverted_by`.
    inverse_to: Ranks

    @property
    def owner(self) -> int | None:
        """Who alone inverts it; None: everybody does."""
        return self.inverted_by[0] if len(self.inverted_by) == 1 else None


@dataclass(frozen=True)
class LayerWork:
    """What happens to a layer."""

    name: str
    a: Work
    g: Work
    preconditioned_by: Ranks
    #: Each sender with those who get the preconditioned gradient from it.
    sends: tuple[tuple[int, Ranks], ...]


@dataclass(frozen=True)
class Distribution:
    """What happens to every layer; equal on all ranks."""

    name: str
    ranks: int
    layers: tuple[LayerWork, ...]

    def inversions(self) -> dict[int, list[str]]:
        """Factors that each rank inverts, such as "conv1 A"."""
        found: dict[int, list[str]] = {rank: [] for rank in range(self.ranks)}
        for layer in self.layers:
            for side, work in (("A", layer.a), ("G", layer.g)):
                name = f"{layer.name} {side}"
                for rank in work.inverted_by:
                    found[rank].append(name)
        return found

    def elements(self, factor_every: int = 1, inverse_every: int = 1) -> float:
        """That a rank sends in a step, on average.

        An operation for one receiver or one sender, such as a broadcast, counts its elements once,
        an all-reduce twice. Symmetric matrices are packed.
        """
        total = 0.0
        for layer in self.layers:
            weights = layer.a.dim * layer.g.dim
            total += 2 * weights + (weights if layer.sends else 0)
            for work in (layer.a, layer.g):
                packed = packed_elements(work.dim)
                times = min(len(work.reduced_to), 2)
                total += times * packed / factor_every
                total += packed / inverse_every if work.inverse_to else 0
        return total


def distribute(kind: str, layers: Sequence[Layer], ranks: int, costs: StageCosts) -> Distribution:
    """The distribution of that name.

    Args:
        kind: replicate, mpd, spd, dp, or kaisa: with a share of the ranks, as in kaisa:0.25.
        layers: In the order of the forward pass.
        ranks: That take part.
        costs: Of inversions, and of sending inverses.

    Raises:
        ValueError: Another name, or a share that is no whole number of ranks, or of groups.
    """
    dims = [dim for layer in layers for dim in (layer.a_dim, layer.g_dim)]
    if ranks < 1:
        raise ValueError(f"{ranks} ranks (expected >= 1)")
    if kind == REPLICATE:
        return of_owners(kind, layers, ranks, (None,) * len(dims))
    if kind == MPD:
        return of_owners(kind, layers, ranks, longest_first(dims, ranks, costs.inversion))
    if kind == SPD:
        return of_owners(kind, layers, ranks, place(dims, ranks, costs).owners)
    if kind == DP:
        return _local(layers, ranks, costs)
    name, colon, share = kind.partition(":")
    if name == KAISA and colon:
        return _kaisa(kind, layers, ranks, _workers(kind, share, ranks), costs)
    raise ValueError(
        f"distribution {kind!r} (expected {REPLICATE}, {MPD}, {SPD}, {DP}, or {KAISA}: with a "
        "share of the ranks, as in kaisa:0.5)"
    )


def of_owners(name: str, layers: Sequence[Layer], ranks: int, owners: Owners) -> Distribution:
    """Inverses to all ranks, from the owners of the factors: A, then G, of each layer in turn.

    A factor that has an owner is reduced to it alone, for nobody else needs it.
    """
    everybody = tuple(range(ranks))

    def work(dim: int, owner: int | None) -> Work:
        if owner is None:
            return Work(dim, everybody, everybody, ())
        return Work(dim, (owner,), (owner,), _others(everybody, owner))

    return Distribution(
        name,
        ranks,
        tuple(
            LayerWork(layer.name, work(layer.a_dim, a), work(layer.g_dim, g), everybody, ())
            for layer, a, g in zip(layers, owners[::2], owners[1::2], strict=True)
        ),
    )


def _local(layers: Sequence[Layer], ranks: int, costs: StageCosts) -> Distribution:
    loads = [0.0] * ranks
    works = {}
    for layer in _largest_first(layers, costs):
        owner = loads.index(min(loads))
        loads[owner] += _seconds(layer, costs)
        alone = (owner,)
        others = _others(tuple(range(ranks)), owner)
        works[layer.name] = LayerWork(
            layer.name,
            Work(layer.a_dim, (), alone, ()),
            Work(layer.g_dim, (), alone, ()),
            alone,
            ((owner, others),) if others else (),
        )
    return Distribution(DP, ranks, tuple(works[layer.name] for layer in layers))


def _kaisa(
    kind: str, layers: Sequence[Layer], ranks: int, workers: int, costs: StageCosts
) -> Distribution:
    """Ranks are a grid of ``workers`` rows; the inverses of a layer belong to a column.

    Each rank of the column sends the preconditioned gradient along its row.
    """
    columns = ranks // workers
    loads = [0.0] * ranks
    works = {}
    for layer in _largest_first(layers, costs):
        column = min(range(columns), key=lambda c: (sum(loads[c::columns]), c))
        group = tuple(range(column, ranks, columns))
        sides = {}
        for side, dim in sorted(
            {"a": layer.a_dim, "g": layer.g_dim}.items(), key=lambda item: -item[1]
        ):
            owner = min(group, key=lambda rank: (loads[rank], rank))
            loads[owner] += float(costs.inversion.seconds(dim))
            sides[side] = Work(dim, (owner,), (owner,), _others(group, owner))
        rows = [tuple(range(row * columns, (row + 1) * columns)) for row in range(workers)]
        sends = [(row[column], _others(row, row[column])) for row in rows] if columns > 1 else []
        works[layer.name] = LayerWork(layer.name, sides["a"], sides["g"], group, tuple(sends))
    return Distribution(kind, ranks, tuple(works[layer.name] for layer in layers))


def _workers(kind: str, share: str, ranks: int) -> int:
    try:
        workers = float(share) * ranks
    except ValueError as error:
        raise ValueError(f"distribution {kind!r}: {share!r} is no number, such as 0.5") from error
    # A third of three ranks is one, whatever three digits of it say.
    rounded = round(workers)
    if not (1 <= rounded <= ranks and abs(workers - rounded) < 0.01 and ranks % rounded == 0):
        good = ", ".join(f"{n / ranks:.4g}" for n in range(1, ranks + 1) if ranks % n == 0)
        raise ValueError(f"distribution {kind!r}: of {ranks} ranks the share may be {good}")
    return rounded


def _seconds(layer: Layer, costs: StageCosts) -> float:
    return float(costs.inversion.seconds(layer.a_dim) + costs.inversion.seconds(layer.g_dim))


def _largest_first(layers: Sequence[Layer], costs: StageCosts) -> list[Layer]:
    return sorted(layers, key=lambda layer: -_seconds(layer, costs))


def _others(ranks: Ranks, owner: int) -> Ranks:
    return tuple(rank for rank in ranks if rank != owner)
