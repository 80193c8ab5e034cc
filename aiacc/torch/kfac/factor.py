"""One factor of a layer: what this step adds to it, its running mean and its inverse."""

from __future__ import annotations

import torch

from aiacc.kfac.factors import average
from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import packed_size


class Factor:
    """A symmetric matrix, a stack of some, or a diagonal.

    Attributes:
        name: In plans and reports, such as "conv1 A".
        shape: See `rows.factor_shapes`.
        dtype: float32, or float64.
        device: Where it is.
        uses: How often this step has added to it.
        uses_per_pass: How often one backward pass does, as the ranks have agreed; 0 before that.
        total: Sum of what this step has added, each times its number of examples.
        weight: Those examples.
        mean: Running mean over steps, on ranks that need it; None: nothing came yet.
        inverse: Of the damped mean, or what a `Solver` has in its place, on ranks that need it;
            None: there is none yet.
        failures: Inversions that this rank tried in vain.
        dropped: What was added and is not finite, so that it does not count; where it is added.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        """One to which nothing was added."""
        self.name, self.shape, self.dtype, self.device = name, shape, dtype, device
        self.uses, self.uses_per_pass = 0, 0
        self.total: torch.Tensor | None = None
        self.weight: torch.Tensor | None = None
        self.mean: torch.Tensor | None = None
        self.inverse: torch.Tensor | None = None
        self.failures = 0
        self.dropped: torch.Tensor | None = None

    @property
    def packed(self) -> int:
        """Elements that travel."""
        return packed_size(self.shape)

    def empty(self) -> torch.Tensor:
        """Memory for it."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def identity(self) -> torch.Tensor:
        """What changes no gradient."""
        if len(self.shape) == 1:
            return torch.ones(self.shape, dtype=self.dtype, device=self.device)
        one = torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)
        return one.expand(self.shape).contiguous()

    def add(self, matrix: torch.Tensor, examples: int) -> None:
        """Take the factor of some examples of this step. One that is not finite counts nothing."""
        self.uses += 1
        # The host does not wait for the answer.
        finite = torch.isfinite(matrix.sum()).to(matrix.dtype)
        self.dropped = 1 - finite if self.dropped is None else self.dropped + (1 - finite)
        weight = finite * examples
        matrix = torch.where(weight > 0, matrix * examples, 0.0)
        if self.total is None or self.weight is None:
            self.total, self.weight = matrix, weight
        else:
            self.total += matrix
            self.weight += weight

    def clear(self) -> None:
        """Forget what this step has added."""
        self.total = self.weight = None
        self.uses = 0

    def take(self, total: torch.Tensor, weight: float, sums: bool, decay: float) -> None:
        """Let a step enter the running mean.

        Args:
            total: Sum over examples, which the caller gives away.
            weight: Examples, > 0.
            sums: Uses of a module in one pass add up, and are not averaged.
            decay: Weight of the mean so far; the first step is the mean.
        """
        self.mean = average(self.mean, total.mul_(self._scale(weight, sums)), decay)

    def entry(self, packed: torch.Tensor, weight: float, sums: bool, decay: float) -> Entry:
        """The same of a sum that is packed, for `average_packed`; the first mean gets memory."""
        kept = 0.0 if self.mean is None else decay
        if self.mean is None:
            self.mean = self.empty()
        return Entry(self.mean, packed, self._scale(weight, sums), kept)

    def _scale(self, weight: float, sums: bool) -> float:
        return (max(self.uses_per_pass, 1) if sums else 1) / weight
