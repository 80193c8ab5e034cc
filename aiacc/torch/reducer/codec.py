"""The form in which gradients travel: what is submitted for them, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.process_sets import ProcessSet
from aiacc.torch.compression.compressors import Compressor
from aiacc.torch.compression.encode import to_send
from aiacc.torch.compression.wire_format import wire_of
from aiacc.torch.ops import sparse
from aiacc.torch.reducer.storage import Flat


class Encoded(NamedTuple):
    """What is submitted for the gradients of a bucket, as one operation."""

    #: Contiguous. The list that was given, and no `decode`: these gradients are reduced where they
    #: are, and so may they be in later steps, without being encoded, while only addresses change.
    tensors: list[torch.Tensor]
    #: Puts what the operation of this handle, which is done, gave into the gradients; or gives what
    #: else is to be reduced before they are there. Its second argument: whether it travelled coded.
    decode: Callable[[int, bool], Encoded | None] | None = None
    #: Undoes what encoding them has changed, if the operation fails.
    undo: Callable[[], None] | None = None
    #: Wire format, see `submission`.
    wire: int = AS_THEY_ARE
    #: Error feedback of each tensor, see `_core.Submission.start`; none: of none.
    residuals: Sequence[torch.Tensor] = ()
    #: What is reduced instead of what `tensors` have, which get the results; none: these.
    inputs: Sequence[torch.Tensor] = ()
    #: Whether later steps may encode them otherwise.
    changes: bool = False
    #: The ranks' rows are gathered, not added up.
    gathers: bool = False


#: Encodes the gradients of one bucket, or its flat tensor, for `decode` to put the result there.
#: Every bucket has a codec of its own until buckets are formed anew: what that keeps from step to
#: step is the bucket's. Raises ValueError for what it cannot encode.
Codec: TypeAlias = Callable[[list[torch.Tensor]], Encoded]


#: Makes the codec of a bucket from the op, names and parameters of its members, and the flat tensor
#: that they are views of, if they are.
Coding: TypeAlias = Callable[
    [int, Sequence[tuple[str, torch.Tensor]], "Flat | None"],
    Codec,
]


def compressing(
    compression: type[Compressor],
    op: int,
    members: Sequence[tuple[str, torch.Tensor]] = (),
    flat: Flat | None = None,
) -> Codec:
    """A codec without state for dense gradients: a class of `Compression`, or one like them."""
    del members, flat

    def encode(tensors: list[torch.Tensor]) -> Encoded:
        wire = wire_of(compression, tensors, op)
        if wire is not None and all(map(_travels, tensors)):
            return Encoded(tensors, wire=wire)
        sent, restore, wire = to_send(compression, tensors, op)
        return Encoded(sent, None if restore is None else lambda *_: restore(), wire=wire)

    return encode


def _travels(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg()


def gathering(parameter: torch.Tensor, what: str, op: int, process_set: ProcessSet) -> Codec:
    """A codec for the sparse gradient of ``parameter``: the entries of all ranks are gathered."""

    def encode(tensors: list[torch.Tensor]) -> Encoded:
        (gradient,) = tensors
        sparse.check_sparse(gradient, what)
        sparse.check_sparse_op(op, what)
        parts = sparse.parts_of(gradient)
        divide_by = sparse.divisor(op, process_set)

        def decode(handle: int, _: bool) -> None:
            parameter.grad = sparse.take_parts(handle, parts, gradient, divide_by)

        return Encoded(parts, decode, gathers=True)

    return encode
