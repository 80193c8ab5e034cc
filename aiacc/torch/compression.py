"""Shorter forms of gradients while they travel."""

from __future__ import annotations

from typing import Protocol

import torch


class Compressor(Protocol):
    """What `allreduce` and `DistributedOptimizer` need; classes with static methods satisfy it."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """The tensor to send, and what `decompress` needs to know. May return ``tensor``."""

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """The reduced tensor in its original form. May return ``tensor``."""


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """``tensor`` itself."""
        del ctx
        return tensor


def _restore(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
    return tensor.to(ctx) if isinstance(ctx, torch.dtype) else tensor


class FP16Compressor:
    """Sends floating-point tensors as float16. Other tensors pass unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """``tensor`` rounded to float16, and its dtype."""
        if not tensor.is_floating_point():
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """``tensor`` in the dtype that it had."""
        return _restore(tensor, ctx)


class BF16Compressor:
    """Sends floating-point tensors as bfloat16: the range of float32, 8 bits of precision."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """``tensor`` rounded to bfloat16, and its dtype."""
        if not tensor.is_floating_point():
            return tensor, None
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """``tensor`` in the dtype that it had."""
        return _restore(tensor, ctx)


class Compression:
    """The choices for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
