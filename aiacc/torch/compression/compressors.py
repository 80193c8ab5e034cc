"""Shorter forms of gradients while they travel.

An all-reduce of float32 tensors narrows them in the core, where it packs them, to what the
compressors of `Compression` stand for. Elsewhere their ``compress`` casts: see `encode`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from aiacc.compression import compressor
from aiacc.compression.codecs import MSTopK, PowerSGD, Quantised, RandomK
from aiacc.compression.policy import Policy


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


class _OfTorch:
    """Knows tensors of torch alone; other front-ends refuse it by this name."""

    front_end = "torch"


def _restore(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
    return tensor.to(ctx) if isinstance(ctx, torch.dtype) else tensor


class FP16Compressor(_OfTorch):
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


class BF16Compressor(_OfTorch):
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


class _FP8Compressor(_OfTorch):
    """Sends float32 CUDA tensors as 8-bit floats, in all-reduces over NCCL only.

    NCCL adds the 8-bit numbers up, on GPUs of compute capability 9 and newer. Nothing scales them:
    prescale factors, or a scaled loss, have to bring the sums of all ranks into the format's range.
    Integers pass unchanged; what cannot travel so is an error where it is submitted.
    """

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """``tensor`` itself, unless it is floating-point.

        Raises:
            ValueError: It is: no cast stands for this format.
        """
        if tensor.is_floating_point():
            raise ValueError(
                f"[torch] {cls.__name__}: tensor of dtype {tensor.dtype} in an operation without "
                "8-bit floats (expected an all-reduce of float32 CUDA tensors over NCCL, not "
                "Adasum); use Compression.bf16"
            )
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """``tensor`` itself."""
        del ctx
        return tensor


class FP8E4M3Compressor(_FP8Compressor):
    """8-bit floats with 3 bits of mantissa: up to 448, no infinity."""


class FP8E5M2Compressor(_FP8Compressor):
    """8-bit floats with 2 bits of mantissa: up to 57344."""


class CodedCompressor(_OfTorch, compressor.CodedCompressor):
    """One for tensors of torch."""

    @staticmethod
    def is_floating(tensor: torch.Tensor) -> bool:
        """See the base class."""
        return tensor.is_floating_point()


def compressor_of(compression: Any) -> Any:
    """As `aiacc.compression.compressor.compressor_of`, with the compressors below."""
    casts = {"none": Compression.none, "fp16": Compression.fp16, "bf16": Compression.bf16}
    return compressor.compressor_of(compression, casts, CodedCompressor)


def scatter_compressor_of(compression: Any) -> Any:
    """`compressor_of`, and ValueError for a policy, which has no `compress`."""
    compression = compressor_of(compression)
    if isinstance(compression, Policy):
        raise ValueError(
            f"compression={compression} of a reduce-scatter (expected one of Compression: a Policy "
            "is for DistributedOptimizer); use Compression.bf16"
        )
    return compression


def name_of(compression: Any) -> str:
    """What an error calls a compressor or a policy."""
    return getattr(compression, "__name__", None) or str(compression)


class Compression:
    """The choices for the argument ``compression``.

    With none a tensor travels as it is. fp16 and bf16 send floating-point tensors in 16 bits, and
    fp8_e4m3 and fp8_e5m2 float32 CUDA tensors in 8 bits; the sum over the ranks is formed in that
    format too. int8, int4 and fp8 send float32 tensors in blocks with a scale each, mstopk the
    largest of their elements, randomk random ones; sums are formed in float32. powersgd is for
    gradients in host memory alone. Integers pass unchanged. Results have the dtype of the tensors,
    and the same bits on all ranks. docs/compression.md has the rules.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    fp8_e4m3 = FP8E4M3Compressor
    fp8_e5m2 = FP8E5M2Compressor
    int8 = CodedCompressor(Quantised("int8"))
    int4 = CodedCompressor(Quantised("int4"))
    fp8 = CodedCompressor(Quantised("fp8"))

    @staticmethod
    def mstopk(density: float = 0.01, mode: str = "tracked") -> CodedCompressor:
        """Send this part of the elements, the largest: see `aiacc.compression.codecs.MSTopK`."""
        return CodedCompressor(MSTopK(density=density, mode=mode))

    @staticmethod
    def randomk(density: float = 0.01, unbiased: bool = False) -> CodedCompressor:
        """Send this part of the elements, by chance: see `aiacc.compression.codecs.RandomK`."""
        return CodedCompressor(RandomK(density=density, unbiased=unbiased))

    @staticmethod
    def powersgd(rank: int = 4) -> CodedCompressor:
        """Send gradients as two thin matrices: see `aiacc.compression.codecs.PowerSGD`."""
        return CodedCompressor(PowerSGD(rank=rank))
