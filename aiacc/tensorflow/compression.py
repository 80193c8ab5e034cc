"""Shorter forms of tensors while they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from aiacc.collectives.reduce_ops import Adasum
from aiacc.collectives.submission import AS_BFLOAT16, AS_FLOAT16, AS_THEY_ARE
from aiacc.compression import compressor
from aiacc.compression.codecs import Quantised
from aiacc.compression.feedback import NoFeedback
from aiacc.compression.policy import Policy
from aiacc.compression.wire import wire_of


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

    #: Other front-ends refuse it by this name.
    front_end = "tensorflow"
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


class CodedCompressor(compressor.CodedCompressor):
    """One for tensors of TensorFlow."""

    front_end = "tensorflow"

    @staticmethod
    def is_floating(tensor: Any) -> bool:
        """See the base class."""
        return bool(tensor.dtype.is_floating)


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = CodedCompressor(Quantised("int8"))
    int4 = CodedCompressor(Quantised("int4"))
    fp8 = CodedCompressor(Quantised("fp8"))


def compressor_of(compression: Any) -> Any:
    """As `aiacc.compression.compressor.compressor_of`, with the compressors above.

    Raises:
        ValueError: Also for what only the front-end of torch has.
    """
    if isinstance(compression, Policy) or compressor.allowed_of(compression) is not None:
        what = str(compression) if isinstance(compression, Policy) else repr(compression)
        raise ValueError(
            f"compression={what} (expected a codec, its name or one of Compression: the front-end "
            "of TensorFlow has no chooser, no schedules and no error feedback); use "
            "Compression.int8, or the front-end of torch"
        )
    casts = {"none": Compression.none, "fp16": Compression.fp16, "bf16": Compression.bf16}
    return compressor.compressor_of(compression, casts, CodedCompressor)


def gradient_policy(compression: Any) -> Policy | None:
    """Which gradients a coded compressor is for; None: another one, which takes all.

    Raises:
        ValueError: It loses so much that only error feedback makes up for it.
    """
    if not isinstance(compression, CodedCompressor):
        return None
    policy = Policy(compression.codec)
    if not isinstance(policy.keeps, NoFeedback):
        raise ValueError(
            f"compression={compression} of gradients (expected none, fp16, bf16, int8, fp8 or "
            "randomk:unbiased=true: the front-end of TensorFlow has no error feedback, without "
            "which this one loses too much); use Compression.int8, or the front-end of torch"
        )
    return policy


#: Into these the core narrows float32 itself.
_WIRE_FORMATS: dict[type, int] = {FP16Compressor: AS_FLOAT16, BF16Compressor: AS_BFLOAT16}


def to_send(compression: Any, tensors: Sequence[Any], op: int) -> tuple[list[Any], list[Any], int]:
    """What an all-reduce sends for ``tensors``: tensors, what `restored` needs, a wire format."""
    if isinstance(compression, CodedCompressor) and op != Adasum:
        coded = all(t.dtype == tf.float32 for t in tensors)
        code = wire_of(compression.codec) if coded else AS_THEY_ARE
        return list(tensors), [None] * len(tensors), code
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
