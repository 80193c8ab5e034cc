"""What K-FAC has done so far, and what it took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.layers import FactoredModule

#: Ranks with a line of their own.
_SHOWN = 8


@dataclass
class Report:
    """Of one rank. As text: a line for each stage and kind of event, and for some ranks.

    Attributes:
        distribution: Its name.
        solve: By what gradients are preconditioned: "cholesky", or "eigh", where decompositions
            take the place of inverses in all that follows.
        ranks: That take part.
        steps: So far.
        factor_steps: Those that built factors.
        inverse_steps: Those that inverted them.
        loss_terms: Over which the loss of the last pass was a mean, on this rank.
        seconds: By stage; on a GPU, what the host has spent.
        nbytes: That an operation moves each time, by what it carries, on this rank.
        together: Factors that travel in one operation, of each operation.
        inverted_by: Factors by the rank that inverts them; replicated ones are each rank's.
        left_out: Modules with parameters that the optimizer alone trains, and why.
        dropped: Parts of factors that were not finite and did not count.
        failures: Inversions after which the last inverse stayed.
    """

    distribution: str = ""
    solve: str = ""
    ranks: int = 1
    steps: int = 0
    factor_steps: int = 0
    inverse_steps: int = 0
    loss_terms: float = 0
    seconds: dict[str, float] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    together: list[list[str]] = field(default_factory=list)
    inverted_by: dict[int, list[str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    failures: int = 0

    def note(self, stage: str, began: float) -> None:
        """Add the time since ``began``, of `time.perf_counter`."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began

    def __str__(self) -> str:
        """Some lines."""
        lines = [
            f"K-FAC {self.distribution} by {self.solve} on {self.ranks} rank(s): {self.steps} "
            f"steps, factors in {self.factor_steps}, inverses in {self.inverse_steps}, the last "
            f"loss a mean over {self.loss_terms:g}"
        ]
        for stage, seconds in self.seconds.items():
            each = seconds / max(self.steps, 1)
            lines.append(f"  {stage:22} {seconds:9.3f} s  {each:.5f} a step")
        for what, nbytes in self.nbytes.items():
            lines.append(f"  {what:22} {nbytes / 1e6:9.3f} MB each time")
        for rank, names in list(self.inverted_by.items())[:_SHOWN]:
            some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            lines.append(f"  rank {rank} inverts {len(names)}: {some}")
        if len(self.inverted_by) > _SHOWN:
            lines.append(f"  and {len(self.inverted_by) - _SHOWN} more ranks: see inverted_by")
        for name, reason in self.left_out.items():
            lines.append(f"  left to the optimizer: {name} ({reason})")
        if self.dropped:
            lines.append(f"  {self.dropped} parts of factors were not finite and did not count")
        if self.failures:
            lines.append(f"  {self.failures} inversions failed; the last inverse stayed")
        return "\n".join(lines)


def completed(
    report: Report,
    layers: Sequence[FactoredModule],
    left_out: Mapping[str, str],
    building_s: float,
    execution: Execution | None,
) -> Report:
    """``report`` itself, with what is known elsewhere. On a GPU the host waits for some of it."""
    factors = [factor for layer in layers for factor in layer.factors]
    now = {layer.name: reason for layer in layers if (reason := layer.why_not)}
    report.left_out = {**left_out, **now}
    report.seconds["build factors"] = building_s
    report.failures = sum(factor.failures for factor in factors)
    report.dropped = int(sum(float(one.dropped) for one in factors if one.dropped is not None))
    if execution is None:
        return report
    plan = execution.plan
    report.distribution, report.ranks = plan.name, plan.ranks
    report.seconds["invert"] = execution.stage.computing_s
    report.seconds["wait for inverses"] = execution.stage.waiting_s
    report.nbytes = {
        "factors": execution.exchange.nbytes,
        "inverses": execution.stage.nbytes,
        "preconditioned": execution.preconditioning.nbytes,
    }
    report.together = execution.exchange.names
    report.inverted_by = plan.inversions()
    return report
