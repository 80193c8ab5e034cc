"""Where gradients are: in memory of their own, or in flat buckets of which they are views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from aiacc.torch.adapter import device_of
from aiacc.torch.reducer.plan import ALIGNMENT_BYTES, padded


class Flat(NamedTuple):
    """The memory of a bucket, which is reduced as one tensor."""

    memory: torch.Tensor
    #: Where its gradients are to be, in the order of the parameters.
    views: list[torch.Tensor]


#: Makes the memory of a bucket for the gradients of these parameters; None: where they are.
Storage: TypeAlias = Callable[[Sequence[torch.Tensor]], Flat | None]


def own_memory(parameters: Sequence[torch.Tensor]) -> None:
    """Leave gradients where autograd puts them."""
    del parameters


def flat_buckets(parameters: Sequence[torch.Tensor]) -> Flat:
    """Let gradients be views of one flat tensor of zeros.

    Raises:
        ValueError: They are of several dtypes, or on several devices.
    """
    kinds = {(parameter.dtype, device_of(parameter)) for parameter in parameters}
    if len(kinds) != 1:
        raise ValueError(
            f"a flat bucket for gradients of dtypes and devices {sorted(map(str, kinds))} "
            "(expected one of each); let the planner put them into several buckets"
        )
    first = parameters[0]
    offsets, elements = lay_out([p.numel() for p in parameters], first.element_size())
    memory = first.detach().new_zeros(elements)
    return Flat(
        memory,
        [
            memory.as_strided(parameter.shape, strides_in(parameter), offset)
            for parameter, offset in zip(parameters, offsets, strict=True)
        ],
    )


def views_pay(copied: int, elements: int) -> bool:
    """Whether gradients of so many elements, of which a step has copied some, are to stay views.

    A copy in host memory costs more than all that views save: a step of ResNet-50's shapes takes
    1.2 times as long with it as with gradients where autograd puts them.
    """
    return 2 * copied <= elements


def lay_out(sizes: Sequence[int], element_bytes: int) -> tuple[list[int], int]:
    """Where gradients of these sizes begin in a flat tensor, and its size, all in elements."""
    assert ALIGNMENT_BYTES % element_bytes == 0
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += padded(size * element_bytes) // element_bytes
    return offsets, end


def strides_in(parameter: torch.Tensor) -> tuple[int, ...]:
    """Of its gradient in a bucket: the parameter's, as autograd wants them, if they fill memory."""
    if is_dense(parameter.shape, parameter.stride()):
        return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of this shape and strides fill memory without gaps or overlap."""
    expected = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True
