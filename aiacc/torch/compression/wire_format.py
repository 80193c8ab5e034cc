"""Whether the tensors of a compressed all-reduce are narrowed on their way, or cast before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from aiacc.collectives.reduce_ops import Adasum
from aiacc.collectives.submission import (
    AS_BFLOAT16,
    AS_FLOAT8_E4M3,
    AS_FLOAT8_E5M2,
    AS_FLOAT16,
    AS_THEY_ARE,
)
from aiacc.compression.policy import Policy
from aiacc.compression.wire import wire_of as wire_of_codec
from aiacc.torch.compression.compressors import (
    CodedCompressor,
    Compression,
    Compressor,
    compressor_of,
)

_CASTS: dict[type, int] = {Compression.fp16: AS_FLOAT16, Compression.bf16: AS_BFLOAT16}
_WITHOUT_CAST: dict[type, int] = {
    Compression.fp8_e4m3: AS_FLOAT8_E4M3,
    Compression.fp8_e5m2: AS_FLOAT8_E5M2,
}


def choose(compression: object, dtypes: Iterable[torch.dtype], op: int) -> int | None:
    """How an all-reduce of tensors of these dtypes travels.

    Pure, and so equal on all ranks. A class derived from one of `Compression` counts as another
    compressor.

    Args:
        compression: What the caller asks for.
        dtypes: One for each tensor of the operation.
        op: Of the all-reduce.

    Returns:
        The wire format for the tensors themselves, which the core may still refuse; or None: send
        what the compressor makes of them.

    Raises:
        ValueError: A policy, or the name of no codec.
    """
    if compression is Compression.none:
        return AS_THEY_ARE
    compression = compressor_of(compression)
    if isinstance(compression, Policy):
        raise ValueError(
            f"[torch] compression={compression} (expected a codec, its name or one of Compression: "
            "operations have no steps; a Policy is for DistributedOptimizer)"
        )
    if isinstance(compression, CodedCompressor):
        coded = all(dtype == torch.float32 for dtype in dtypes)
        return wire_of_codec(compression.codec) if coded else AS_THEY_ARE
    if not isinstance(compression, type):
        return None
    if compression in _WITHOUT_CAST:
        floating = any(dtype.is_floating_point for dtype in dtypes)
        return _WITHOUT_CAST[compression] if floating else AS_THEY_ARE
    # float32 is what the kernels can narrow.
    narrows = op != Adasum and all(dtype == torch.float32 for dtype in dtypes)
    return _CASTS.get(compression) if narrows else None


def has_cast(compression: object) -> bool:
    """Whether a compressor works wherever tensors are."""
    if not isinstance(compression, type):
        return not isinstance(compression, CodedCompressor | Policy)
    return compression not in _WITHOUT_CAST


def wire_of(compression: type[Compressor], tensors: Sequence[torch.Tensor], op: int) -> int | None:
    """`choose` for an all-reduce of these tensors."""
    return choose(compression, (tensor.dtype for tensor in tensors), op)
