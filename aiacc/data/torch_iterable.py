"""A cached iterable as torch's DataLoader wants it. It imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset


class TorchIterable(IterableDataset[Any]):
    """Passes of an iterable; made by `CachedIterable.for_torch`."""

    def __init__(self, cached: Iterable[Any]) -> None:
        self._cached = cached

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cached)
