"""What the operations on groups of tensors share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aiacc import _core
from aiacc.labels import label_of
from aiacc.process_sets import ProcessSet, set_id
from aiacc.torch.adapter import address_and_code, check_rows, place_of_all
from aiacc.torch.compression.compressors import Compressor
from aiacc.torch.compression.wire_format import AS_THEY_ARE
from aiacc.torch.handles import synchronize

Tensors = list[torch.Tensor]


def group_of(tensors: Any, kind: str, name: str | None, rows: bool = False) -> Tensors:
    """The tensors as a list, once it is certain that the core takes them; ``rows``: with rows.

    Raises:
        ValueError: There is none, or the core does not take one.
        TypeError: A single tensor was given.
    """
    what = label_of(kind, name)
    if isinstance(tensors, torch.Tensor):
        raise TypeError(
            f"[torch] {what}: one tensor of shape {tuple(tensors.shape)} (expected a list of "
            "tensors); wrap it in a list"
        )
    group = list(tensors)
    if not group:
        raise ValueError(f"[torch] {what}: an empty list (expected at least one tensor)")
    for number, tensor in enumerate(group):
        address_and_code(tensor, f"tensor {number} of {what}")
        if rows:
            check_rows(tensor, f"tensor {number} of {what}")
    return group


def submit_group(
    kind: int,
    verb: str,
    name: str | None,
    tensors: Tensors,
    outputs: Tensors | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    wire: int = AS_THEY_ARE,
) -> int:
    """Queue an operation of the group and return its handle.

    Raises:
        ValueError: The tensors are on several devices, or the core refuses them.
        CollectiveError: Not initialised, or the job has failed.
    """
    codes = [address_and_code(tensor, verb) for tensor in tensors]
    return _core.submit_group(
        kind,
        f"{verb}.{name}" if name else "",
        tuple(address for address, _ in codes),
        tuple(0 if outputs is None else out.data_ptr() for out in outputs or tensors),
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(code for _, code in codes),
        op,
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        *place_of_all(tensors, label_of(verb, name)),
        wire,
    )


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


def contiguous(grads: Iterable[torch.Tensor]) -> Tensors:
    """Gradients as the core takes them."""
    return [grad.contiguous() for grad in grads]
