"""PowerSGD: what gradients that are matrices become as products of two thin ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch


class LowRank:
    """The compressed gradients of a bucket, of this rank.

    Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019 (arXiv 1905.13727), algorithm 1 with warm
    start: of gradients M, which a factor Q of the step before is known of, the ranks sum up P = M Q
    and make its columns orthonormal; then they sum up Q = M^T P; P Q^T stands for the sum of all M.
    Each rank keeps M - P Q^T of its own M and Q: so sums and residuals together lose nothing,
    whichever ranks take part.

    Ranks have the same results as far as their processors and torch multiply alike. Call it outside
    of autocast, under which backward passes may run.
    """

    def __init__(
        self, rank: int, members: Sequence[tuple[str, int]], factors: dict[str, torch.Tensor]
    ) -> None:
        """Begin where ``factors`` are.

        Args:
            rank: Columns of a factor at most.
            members: Name and place in the bucket of each compressed gradient.
            factors: Q by name, changed in every step. Random at first, the same on all ranks.
        """
        self._rank = rank
        self._members = list(members)
        self._factors = factors
        #: Those of the step.
        self._gradients: list[torch.Tensor] = []
        self._matrices: list[torch.Tensor] = []
        self._left: list[torch.Tensor | None] = []
        self._columns: list[torch.Tensor] = []
        self._scale = 1.0

    def begin(
        self,
        gradients: Sequence[torch.Tensor],
        residuals: Sequence[torch.Tensor | None],
        scale: float = 1.0,
        beta: float = 1.0,
    ) -> torch.Tensor:
        """What all ranks add up first: each P, then the gradients that are not compressed.

        Args:
            gradients: Of the whole bucket, float32 in host memory; residuals are added to them.
            residuals: Of the compressed ones, of their shapes, in their order; None: not kept.
            scale: What residuals are multiples of.
            beta: How often they count.

        Raises:
            ValueError: Tensors elsewhere.
        """
        if not all(gradient.is_cpu for gradient in gradients):
            raise ValueError(
                "powersgd of gradients on GPUs (expected host memory); use torch's own hook, "
                "powerSGD_hook, or Compression.bf16"
            )
        self._gradients, self._left, self._scale = list(gradients), list(residuals), scale
        self._matrices = []
        parts = []
        for (name, place), residual in zip(self._members, residuals, strict=True):
            gradient = gradients[place]
            if residual is not None:
                gradient.add_(residual, alpha=beta / scale)
            matrix = gradient.reshape(gradient.shape[0], -1)
            self._matrices.append(matrix)
            parts.append((matrix @ self._factor(name, matrix)).view(-1))
        return torch.cat([*parts, *(self._gradients[place].reshape(-1) for place in self._others)])

    def project(self, summed: torch.Tensor) -> torch.Tensor | None:
        """What all ranks add up next, each Q; None: some gradient was not finite, and all now are.

        Args:
            summed: What `begin` gave, summed over the ranks; the same on all of them.
        """
        rows = [matrix.shape[0] * self._width(matrix) for matrix in self._matrices]
        *columns, others = torch.split(summed, [*rows, summed.numel() - sum(rows)])
        sizes = [self._gradients[place].numel() for place in self._others]
        for place, value in zip(self._others, torch.split(others, sizes), strict=True):
            self._gradients[place].copy_(value.view(self._gradients[place].shape))
        if not all(bool(column.isfinite().all()) for column in columns):
            for _, place in self._members:
                self._gradients[place].fill_(torch.nan)
            return None
        self._columns = [
            torch.linalg.qr(column.view(matrix.shape[0], -1))[0]
            for column, matrix in zip(columns, self._matrices, strict=True)
        ]
        parts = []
        for matrix, columns_of, left in zip(self._matrices, self._columns, self._left, strict=True):
            own = matrix.t() @ columns_of
            if left is not None:
                rest = torch.addmm(matrix, columns_of, own.t(), alpha=-1)
                left.copy_(rest.view(left.shape)).mul_(self._scale)
            parts.append(own.reshape(-1))
        return torch.cat(parts)

    def finish(self, summed: torch.Tensor) -> None:
        """Put the sums of the ranks into the gradients.

        Args:
            summed: What `project` gave, summed over the ranks.
        """
        sizes = [matrix.shape[1] * self._width(matrix) for matrix in self._matrices]
        for (name, place), columns, own in zip(
            self._members, self._columns, torch.split(summed, sizes), strict=True
        ):
            factor = own.view(-1, columns.shape[1])
            gradient = self._gradients[place]
            gradient.copy_((columns @ factor.t()).view(gradient.shape))
            if bool(factor.isfinite().all()):
                self._factors[name] = factor.clone()
        self._gradients, self._matrices, self._left, self._columns = [], [], [], []

    @property
    def _others(self) -> list[int]:
        compressed = {place for _, place in self._members}
        return [place for place in range(len(self._gradients)) if place not in compressed]

    def _width(self, matrix: torch.Tensor) -> int:
        return min(self._rank, matrix.shape[0], matrix.shape[1])

    def _factor(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        shape = matrix.shape[1], self._width(matrix)
        factor = self._factors.get(name)
        if factor is None or factor.shape != shape:
            generator = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode()))
            factor = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
            self._factors[name] = factor
        return factor
