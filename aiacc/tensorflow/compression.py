"""Shorter forms of tensors while they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from aiacc.collectives.reduce_ops import Adasum
from aiacc.collectives.submission import AS_BFLOAT16, AS_FLOAT16, AS_THEY_ARE


class Compressor(Protocol):
    """What `allreduce` and optimizers need; classes with static methods satisfy it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in its original form."""


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` itself."""
        del ctx
        return tensor


class _Casting:
    """Sends floating-point tensors as ``dtype``. Other tensors pass unchanged."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """``tensor`` rounded to ``dtype``, and the dtype that it had."""
        tensor = tf.convert_to_tensor(tensor)
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Casting):
    """Sends floating-point tensors as float16. Other tensors pass unchanged."""

    dtype = tf.float16


class BF16Compressor(_Casting):
    """Sends floating-point tensors as bfloat16: the range of float32, 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


#: Into these the core narrows float32 itself.
_WIRE_FORMATS: dict[type, int] = {FP16Compressor: AS_FLOAT16, BF16Compressor: AS_BFLOAT16}


def to_send(
    compression: type[Compressor], tensors: Sequence[Any], op: int
) -> tuple[list[Any], list[Any], int]:
    """What an all-reduce sends for ``tensors``: tensors, what `restored` needs, a wire format."""
    wire = _WIRE_FORMATS.get(compression)
    if wire is not None and op != Adasum and all(t.dtype == tf.float32 for t in tensors):
        return list(tensors), [None] * len(tensors), wire
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [ctx for _, ctx in pairs], AS_THEY_ARE


def restored(
    compression: type[Compressor], tensors: Sequence[Any], contexts: Sequence[Any], wire: int
) -> list[Any]:
    """The results of an all-reduce of what `to_send` gave."""
    if wire != AS_THEY_ARE:
        return list(tensors)
    return [compression.decompress(t, ctx) for t, ctx in zip(tensors, contexts, strict=True)]
