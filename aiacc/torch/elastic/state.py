"""What an elastic job keeps when ranks come and go. Not available yet."""

from __future__ import annotations

from typing import Any

import torch

from aiacc.collectives.elastic import refusal


class TorchState:
    """Model, optimizer and other values that survive the loss and the arrival of ranks.

    Raises:
        NotImplementedError: Always, for now.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        del model, optimizer, kwargs
        raise refusal("TorchState")
