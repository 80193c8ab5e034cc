"""A distribution at work: the exchanges of its factors, inverses and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiacc.kfac.distribution import Distribution
from aiacc.kfac.stage import StageCosts
from aiacc.torch.kfac.buckets import FactorBucket, FactorExchange
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.fusion import THRESHOLD_BYTES, Fused, Planned, by_plan, by_threshold
from aiacc.torch.kfac.gradients import Preconditioning
from aiacc.torch.kfac.inverses import InverseStage
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.moments import Recording
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.kfac.solvers import CHOLESKY, SOLVERS, Solver


class Execution:
    """What one rank does of a distribution.

    Attributes:
        plan: The distribution.
        exchange: Of factors.
        stage: Of inverses.
        preconditioning: Of gradients.
        unneeded: Names of factors that this rank need not build.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[FactoredModule],
        plan: Distribution,
        ranks: Ranks,
        most_bytes: int = THRESHOLD_BYTES,
        together: Sequence[Iterable[str]] = (),
        solver: Solver = SOLVERS[CHOLESKY],
    ) -> None:
        """Lay out the memory of exchanges.

        Collective: every rank, with the same arguments. Blocks until groups of ranks are connected.

        Args:
            name: Of its operations.
            layers: In the order of the plan.
            plan: Equal on all ranks.
            ranks: That take part.
            most_bytes: Of a bucket, until `fuse` says better.
            together: See `InverseStage`.
            solver: The same.
        """
        self.plan = plan
        self._name, self._ranks = name, ranks
        self._factors = {f.name: f for layer in layers for f in layer.factors}
        self._works = {
            factor.name: work
            for layer, works in zip(layers, plan.layers, strict=True)
            for factor, work in zip(layer.factors, (works.a, works.g), strict=True)
        }
        forward = [layer.a for layer in layers]
        backward = [layer.g for layer in reversed(layers)]
        self._forward = {factor.name for factor in forward}
        sent = [f for f in (*forward, *backward) if self._works[f.name].reduced_to]
        local = [f for f in self._factors.values() if not self._works[f.name].reduced_to]
        if ranks.alone:
            sent, local = [], list(self._factors.values())
        local = [f for f in local if ranks.index in self._works[f.name].inverted_by]
        self._sent, self._local = sent, local
        self._generation = 0
        planned = [self._planned(factor) for factor in sent]
        self.exchange = self._exchange(by_threshold(planned, ranks.size, most_bytes))
        self.stage = InverseStage(name, layers, plan, ranks, together, solver)
        self.preconditioning = Preconditioning(name, layers, plan, ranks, solver)
        needed = {f.name for f in (*sent, *local)}
        self.unneeded = [name for name in self._factors if name not in needed]
        self.forget_unneeded()

    @property
    def divided(self) -> bool:
        """Whether no rank has all means."""
        return any(self.holder(name) is not None for name in self._factors)

    def forget_unneeded(self) -> None:
        """Drop means that this rank does not need, such as those of a checkpoint."""
        for factor in self._factors.values():
            work = self._works[factor.name]
            if self._ranks.index not in (*work.reduced_to, *work.inverted_by):
                factor.mean = None

    def forget_divided(self) -> None:
        """Drop means and inverses that not every rank has, for a job that divides them anew."""
        for name, factor in self._factors.items():
            work = self._works[name]
            if self.holder(name) is not None:
                factor.mean = None
            if len({*work.inverted_by, *work.inverse_to}) < self._ranks.size:
                factor.inverse = None

    def holder(self, name: str) -> int | None:
        """The rank that alone has the mean of a factor; None: all have."""
        work = self._works[name]
        return None if self._ranks.alone or len(work.reduced_to) > 1 else work.owner

    @property
    def can_fuse(self) -> bool:
        """Whether there are several factors to send, which may share buckets."""
        kinds = {(factor.dtype, factor.device) for factor in self._sent}
        return len(self._sent) > 1 and len(kinds) == 1

    def fuse_by(self, recording: Recording, costs: StageCosts) -> list[tuple[str, ...]]:
        """Let factors travel by the exact plan of what was recorded; the buckets of gradients.

        Collective: every rank, between the same two steps. Blocks.
        """
        planned = [self._planned(factor) for factor in self._sent]
        sizes = [(one.name, one.nbytes) for one in planned]
        factors, gradients = recording.moments(sizes, self._ranks)
        owners = {one.name: one.owner for one in planned}
        fused, merged = by_plan(factors, gradients, owners, costs, self._ranks.size)
        self.fuse(fused)
        return merged

    def fuse(self, buckets: Sequence[Fused]) -> None:
        """Let factors travel in other buckets from now on.

        Collective: no, but every rank between the same two steps, with the same buckets.
        """
        self.exchange = self._exchange(buckets)

    def drop_exchange(self) -> None:
        """Forget factors that are on their way: those of another pass have other names.

        Collective: no, but every rank between the same two steps.
        """
        self.fuse(self._fused)

    def _planned(self, factor: Factor) -> Planned:
        nbytes = (factor.packed + 1) * factor.dtype.itemsize
        owner = self.holder(factor.name)
        # Those of the forward pass do not wait for the backward pass.
        side = factor.name in self._forward
        return Planned(factor.name, nbytes, owner, f"{side} {factor.dtype} {factor.device}")

    def _exchange(self, buckets: Sequence[Fused]) -> FactorExchange:
        self._fused = list(buckets)
        self._generation += 1
        return FactorExchange(
            [
                FactorBucket(
                    f"{self._name}.factors.{self._generation}.{number}",
                    bucket.operation,
                    [self._factors[name] for name in bucket.names],
                    [self.holder(name) for name in bucket.names],
                    self._ranks,
                )
                for number, bucket in enumerate(buckets)
            ],
            self._local,
        )
