"""The stage in which factors are inverted and inverses are sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch

from aiacc.collectives.reduce_ops import Sum
from aiacc.kfac.distribution import Distribution, Work
from aiacc.kfac.inverses import split_damping
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.kfac.solvers import CHOLESKY, SOLVERS, Solver
from aiacc.torch.mpi_ops import allgather_async, allreduce_, broadcast_async_, synchronize
from aiacc.torch.parallel.departures import Departures

Pair = tuple[Factor, Work]


class InverseStage:
    """Inverts what a distribution gives this rank, and brings inverses to where they belong.

    Where a factor has no inverse, because it is not finite, its last one stays, on every rank.
    Where there is none yet, or nothing has come to the factor, the identity stands for it.

    Attributes:
        computing_s: Spent on inversions so far.
        waiting_s: Spent on waiting for others so far.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[FactoredModule],
        plan: Distribution,
        ranks: Ranks,
        together: Sequence[Iterable[str]] = (),
        solver: Solver = SOLVERS[CHOLESKY],
    ) -> None:
        """Of the layers in ``plan``.

        Collective: connects the ranks that share inverses. Blocks until they are.

        Args:
            name: Of its operations, equal on all ranks.
            layers: In the order of the plan.
            plan: Who inverts what.
            ranks: That take part.
            together: Names of factors whose inverses travel together, in this order; those that
                are in none do as well.
            solver: Computes inverses, or what takes their place.
        """
        self._name, self._ranks, self._solver = name, ranks, solver
        self._layers = list(layers)
        works = [work for layer in plan.layers for work in (layer.a, layer.g)]
        factors = [factor for layer in layers for factor in layer.factors]
        pairs: list[Pair] = list(zip(factors, works, strict=True))
        #: Whose means only their owners have.
        self._apart = [
            (factor, work.owner)
            for factor, work in pairs
            if len(work.reduced_to) == 1 and not ranks.alone
        ]
        mine = [pair for pair in pairs if ranks.index in pair[1].inverted_by]
        self._groups = _groups(name, pairs, ranks, together, solver)
        self._number_of = {
            factor.name: number
            for number, group in enumerate(self._groups)
            for factor in group.mine
        }
        # As the stage is planned: what others wait for first, the largest first, and of equal ones
        # those that leave first.
        self._mine = sorted(mine, key=self._batch)
        self.computing_s = self.waiting_s = 0.0

    @property
    def nbytes(self) -> int:
        """That this rank sends each time."""
        return sum(group.nbytes for group in self._groups)

    def run(self, damping: float, split: str) -> None:
        """Invert, send and receive.

        Collective: every rank. Blocks: until the inverses of others are there.

        Args:
            damping: Of A (x) G, for a solver whose results contain it.
            split: See `split_damping`; for such a solver, too.

        Raises:
            CollectiveError: An operation failed.
        """
        began = time.perf_counter()
        dampings = self._dampings(damping, split) if self._solver.damps else {}
        shared = time.perf_counter()
        departures = Departures(self._parts(), lambda number: self._groups[number].start())
        for _, some in groupby(self._mine, self._batch):
            factors = [factor for factor, _ in some]
            self._invert(factors, dampings)
            departures.computed(factor.name for factor in factors)
        computed = time.perf_counter()
        for group in self._groups:
            group.finish()
        self.computing_s += computed - shared
        self.waiting_s += shared - began + time.perf_counter() - computed

    def _parts(self) -> list[list[str]]:
        """Factors that this rank inverts before each group leaves."""
        return [[factor.name for factor in group.mine] for group in self._groups]

    def _batch(self, pair: Pair) -> tuple[bool, int, tuple[int, ...], int]:
        """Equal for factors that are inverted at once: of one dimension, and leaving together."""
        return *_turn(pair), self._number_of.get(pair[0].name, len(self._groups))

    def _invert(self, factors: list[Factor], dampings: dict[str, torch.Tensor]) -> None:
        """Those of one dimension, at once."""
        means = [factor.mean for factor in factors if factor.mean is not None]
        known = [factor for factor in factors if factor.mean is not None]
        some = [dampings[factor.name] for factor in known if self._solver.damps]
        found = self._solver.compute(means, some)
        for factor, inverse in zip(known, found, strict=True):
            if inverse is None:
                factor.failures += 1
            else:
                factor.inverse = inverse
        for factor in factors:
            if factor.inverse is None:
                factor.inverse = self._solver.identity(factor)

    def _dampings(self, damping: float, split: str) -> dict[str, torch.Tensor]:
        """Of every factor; of each the mean eigenvalue of its layer's other one decides, too."""
        means = {f.name: _mean_eigenvalue(f) for layer in self._layers for f in layer.factors}
        if self._apart:
            self._exchange(means)
        found: dict[str, torch.Tensor] = {}
        for layer in self._layers:
            a, g = (means[factor.name][..., None, None] for factor in layer.factors)
            dampings = split_damping(a, g, damping, split)
            found.update(zip((layer.a.name, layer.g.name), dampings, strict=True))
        return found

    def _exchange(self, means: dict[str, torch.Tensor]) -> None:
        """Let all ranks know the mean eigenvalues that only owners know."""
        known = [
            means[factor.name].reshape(-1).double() * (owner == self._ranks.index)
            for factor, owner in self._apart
        ]
        flat = torch.cat(known)
        allreduce_(flat, None, f"{self._name}.traces", Sum, process_set=self._ranks.process_set)
        parts = torch.split(flat, [one.numel() for one in known])
        for (factor, _), part in zip(self._apart, parts, strict=True):
            means[factor.name] = part.to(factor.dtype).reshape(means[factor.name].shape)


class _Group:
    """Inverses that travel together among the ranks that share them.

    Those of several owners by an all-gather, those of one by a broadcast.
    """

    def __init__(
        self, name: str, members: Sequence[int], pairs: list[Pair], ranks: Ranks, solver: Solver
    ) -> None:
        self._name, self._me, self._solver = name, ranks.index, solver
        self._process_set = ranks.among(members)
        #: What each of the ranks sends.
        self._of = {
            rank: [factor for factor, work in pairs if work.owner == rank] for rank in members
        }
        owners = [rank for rank, factors in self._of.items() if factors]
        self._root = owners[0] if len(owners) == 1 else None
        everyone = ranks.process_set.ranks or range(ranks.size)
        self._root_rank = None if self._root is None else everyone[self._root]
        self._handle: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(self._solver.size(factor) * factor.dtype.itemsize for factor in self.mine)

    @property
    def mine(self) -> list[Factor]:
        """What this rank sends."""
        return self._of[self._me]

    def start(self) -> None:
        sender = self._me if self._root is None else self._root
        size = sum(map(self._solver.size, self._of[sender]))
        like = next(factor for factors in self._of.values() for factor in factors)
        flat = torch.empty(size, dtype=like.dtype, device=like.device)
        mine = self.mine
        if mine:
            inverses = [factor.inverse for factor in mine if factor.inverse is not None]
            self._solver.pack(inverses, flat)
            # Rounding has left the lower triangles others; all ranks are to compute with the same.
            self._put(mine, flat)
        if self._root_rank is None:
            self._handle = allgather_async(flat, self._name, self._process_set)
        else:
            self._handle = broadcast_async_(flat, self._root_rank, self._name, self._process_set)

    def finish(self) -> None:
        assert self._handle is not None
        handle, self._handle = self._handle, None
        result: torch.Tensor = synchronize(handle)
        begin = 0
        for rank, factors in self._of.items():
            end = begin + sum(map(self._solver.size, factors))
            if rank != self._me and factors:
                self._put(factors, result[begin:end])
            begin = end

    def _put(self, factors: Sequence[Factor], packed: torch.Tensor) -> None:
        """Give factors the inverses that were packed."""
        inverses = self._solver.unpack(packed, factors)
        for factor, inverse in zip(factors, inverses, strict=True):
            factor.inverse = inverse


def _groups(
    name: str,
    pairs: Sequence[Pair],
    ranks: Ranks,
    together: Sequence[Iterable[str]],
    solver: Solver,
) -> list[_Group]:
    """Those that this rank is in."""
    number_of = {factor: number for number, names in enumerate(together) for factor in names}
    sent: dict[tuple[object, ...], list[Pair]] = {}
    for factor, work in pairs:
        members = tuple(sorted({*work.inverted_by, *work.inverse_to}))
        if work.inverse_to and ranks.index in members:
            number = number_of.get(factor.name, len(together))
            key = (number, members, str(factor.dtype), str(factor.device))
            sent.setdefault(key, []).append((factor, work))
    return [
        _Group(f"{name}.inverses.{number}", key[1], sent[key], ranks, solver)  # type: ignore[arg-type]
        for number, key in enumerate(sorted(sent, key=lambda key: key[0]))  # type: ignore[arg-type, return-value]
    ]


def _turn(pair: Pair) -> tuple[bool, int, tuple[int, ...]]:
    factor, work = pair
    return not work.inverse_to, -factor.packed, factor.shape


def _mean_eigenvalue(factor: Factor) -> torch.Tensor:
    """Of each of its matrices; 0 if nothing has come to it, or if it is not here."""
    shape = factor.shape
    if factor.mean is None:
        return torch.zeros(
            shape[:-2] if len(shape) > 2 else (), dtype=factor.dtype, device=factor.device
        )
    mean = factor.mean
    return (mean if len(shape) == 1 else mean.diagonal(dim1=-2, dim2=-1)).mean(-1)
