"""What the operations on groups of tensors share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from aiacc import arguments
from aiacc.collectives.handles import synchronize
from aiacc.collectives.labels import label_of
from aiacc.torch.adapter import REDUCED, Carriers, check_rows, contiguous, view_of
from aiacc.torch.compression.compressors import Compressor

Tensors = list[torch.Tensor]


def group_of(
    tensors: Any, kind: str, name: str | None, rows: bool = False, carriers: Carriers = REDUCED
) -> Tensors:
    """The tensors as a list, once it is certain that the core takes them; ``rows``: with rows.

    Raises:
        ValueError: There is none, or the core does not take one.
        TypeError: A single tensor was given, or what is no list.
    """
    what = label_of(kind, name)
    arguments.check({"tensors": tensors})
    group = list(tensors)
    if not group:
        raise ValueError(f"[torch] {what}: an empty list (expected at least one tensor)")
    for number, tensor in enumerate(group):
        view_of(tensor, f"tensor {number} of {what}", carriers)
        if rows:
            check_rows(tensor, f"tensor {number} of {what}")
    return group


class GroupView(NamedTuple):
    """Tensors as the core takes them as one operation."""

    addresses: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    codes: tuple[int, ...]
    #: Ordinal of the CUDA device, or -1: host memory.
    device: int
    stream: int

    @property
    def spec(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], int]:
        """What `submission` wants to know of them."""
        return self.shapes, self.codes, self.device


def group_view_of(tensors: Tensors, what: str, carriers: Carriers = REDUCED) -> GroupView:
    """What the core has to know of tensors that travel as one operation.

    Raises:
        ValueError: They are on several devices, or the core does not take one.
    """
    views = [view_of(tensor, what, carriers) for tensor in tensors]
    for number, view in enumerate(views):
        if view.device != views[0].device:
            raise ValueError(
                f"[torch] {what}: tensor {number} on device {tensors[number].device} and tensor 0 "
                f"on {tensors[0].device} (expected one device); make a group for each device"
            )
    addresses, shapes, codes = zip(*((v.address, v.shape, v.code) for v in views), strict=True)
    return GroupView(addresses, shapes, codes, views[0].device, views[0].stream)


def addresses_of(tensors: Tensors) -> tuple[int, ...]:
    """Where the tensors are."""
    return tuple(tensor.data_ptr() for tensor in tensors)


def tensors_of(handle: int) -> Tensors:
    """`synchronize` an operation of a group."""
    outputs: Tensors = synchronize(handle)
    return outputs


def decompressed(
    compression: type[Compressor],
    results: Tensors,
    compressed: list[tuple[torch.Tensor, object]],
) -> Tensors:
    """What ``results`` are in the form that the tensors had before they were compressed."""
    return [
        compression.decompress(result, ctx)
        for result, (_, ctx) in zip(results, compressed, strict=True)
    ]


def gradients_of(grads: Iterable[torch.Tensor]) -> Tensors:
    """Gradients as the core takes them: dense and contiguous, and in the graph if they were."""
    return [contiguous(g if g.layout is torch.strided else g.to_dense(), "gradient") for g in grads]
