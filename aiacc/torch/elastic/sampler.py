"""Divides a data set among ranks whose number changes. Not available yet."""

from __future__ import annotations

from typing import Any

import torch

from aiacc.collectives.elastic import refusal


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Yields what the ranks have not processed yet.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        del dataset, shuffle, seed
        raise refusal("ElasticSampler")
