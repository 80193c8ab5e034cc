"""Tensors in the form in which a compressed all-reduce sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.torch.compression.compressors import Compression, Compressor, compressor_of
from aiacc.torch.compression.wire_format import wire_of


class Sent(NamedTuple):
    """What to submit, to be reduced in place."""

    #: Contiguous. Those that were given, or copies.
    tensors: list[torch.Tensor]
    #: Puts the results into the tensors that were given; None: they are there.
    restore: Callable[[], None] | None
    wire: int


def to_send(compression: type[Compressor], tensors: Sequence[torch.Tensor], op: int) -> Sent:
    """Tensors that an all-reduce shall change in place, as ``compression`` wants them to travel.

    Raises:
        ValueError: The compressor cannot do it.
    """
    compression = compressor_of(compression)
    wire = wire_of(compression, tensors, op)
    codec = compression if wire is None else Compression.none
    with torch.no_grad():
        made = [codec.compress(tensor) for tensor in tensors]
        sent = [compressed.resolve_neg().contiguous() for compressed, _ in made]
    apart = [
        (tensor, one, ctx)
        for tensor, one, (_, ctx) in zip(tensors, sent, made, strict=True)
        if ctx is not None or one.data_ptr() != tensor.data_ptr()
    ]

    def restore() -> None:
        with torch.no_grad():
            for tensor, one, ctx in apart:
                tensor.copy_(codec.decompress(one, ctx))

    return Sent(sent, restore if apart else None, AS_THEY_ARE if wire is None else wire)
