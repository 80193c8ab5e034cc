"""Inputs whose all-reduced values are known exactly, element by element."""

from collections.abc import Sequence

import torch

from bench.shapes import Shape

#: Integers up to here are bfloat16 numbers.
BFLOAT16_EXACT = 256
# A prime period: an error in an offset, of any alignment, shifts the pattern and is noticed.
_PERIOD = 1021


class Tensors:
    """Separately allocated fp32 tensors of one rank, and the values that they must take.

    The input of rank r is ``pattern * (r + 1)``; the pattern's values are integers below 1021, so
    that sums and averages over a power of two of ranks are exact.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[str, Shape]],
        rank: int,
        size: int,
        largest_sum: int = 0,
        device: str = "cpu",
    ) -> None:
        """Allocate the tensors; ``rank`` of ``size`` decides their inputs.

        Args:
            shapes: Names and shapes.
            rank: This one.
            size: Ranks.
            largest_sum: No sum over the ranks is more than this; 0: as they come.
            device: Where they lie.
        """
        self.names = [name for name, _ in shapes]
        self.tensors = [torch.empty(shape, device=device) for _, shape in shapes]
        self.size = size
        count = sum(tensor.numel() for tensor in self.tensors)
        ranks_sum = size * (size + 1) // 2
        pattern = (torch.arange(1, count + 1, device=device) % _PERIOD).float()
        if largest_sum > 0:
            pattern %= largest_sum // ranks_sum + 1
        self._inputs = self._views(pattern * (rank + 1))
        self._patterns = self._views(pattern)
        self._ranks_sum = float(ranks_sum)
        self._exact = size & (size - 1) == 0

    def fill(self) -> None:
        """Write this rank's inputs."""
        for tensor, value in zip(self.tensors, self._inputs, strict=True):
            tensor.copy_(value)

    def check_average(self) -> None:
        """Raise AssertionError unless all tensors hold the average over the ranks."""
        self.check(self.tensors, self._ranks_sum / self.size)

    def check_repeated_sum(self, calls: int) -> None:
        """The same for ``calls`` sums, each over the outcome of the one before."""
        self.check(self.tensors, self._ranks_sum * self.size ** (calls - 1))

    def check(self, values: Sequence[torch.Tensor], factor: float) -> None:
        """Raise AssertionError unless ``values`` are the pattern times ``factor``."""
        for name, value, pattern in zip(self.names, values, self._patterns, strict=True):
            expected = pattern * factor
            if self._exact:
                good = torch.equal(value, expected)
            else:
                good = torch.allclose(value, expected, rtol=1e-6)
            if not good:
                wrong = int((value != expected).sum())
                raise AssertionError(f"{name}: {wrong} of {value.numel()} elements are wrong")

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in self.tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]
