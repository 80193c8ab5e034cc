"""Packing on GPUs by kernels of the core: what they take, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from aiacc import _core


class Entry(NamedTuple):
    """A factor, and where it is packed."""

    #: d x d, n x d x d, or a diagonal.
    factor: Tensor
    #: One axis, contiguous.
    packed: Tensor
    #: Of what is packed, if it enters a running mean.
    scale: float = 1.0
    #: Weight of the mean so far, below 1; 0: it is not read.
    kept: float = 0.0


def queue(work: str, entries: Sequence[Entry]) -> list[Entry]:
    """Queue ``work`` for what the kernels take: a launch for up to 73 factors. Waits for nothing.

    Args:
        work: "pack", "unpack", or "average", which lets what is packed enter a running mean.
        entries: On any devices. Kernels run on the current stream of each.

    Returns:
        What is left to do by torch: on a CPU, of another dtype than float32 and float64, diagonals,
        and where the core has no kernels for the GPU.
    """
    left = []
    taken: dict[tuple[int, torch.dtype], list[Entry]] = {}
    for entry in entries:
        if _is_taken(entry):
            where = entry.factor.get_device(), entry.factor.dtype
            taken.setdefault(where, []).append(entry)
        else:
            left.append(entry)
    for (device, dtype), found in taken.items():
        _kernel_of(work)(
            [_addresses(entry) for entry in found],
            float64=dtype is torch.float64,
            device=device,
            stream=current_stream(device),
        )
    return left


def _kernel_of(work: str) -> Callable[..., None]:
    return {
        "pack": _core.pack_factors_on_gpu,
        "unpack": _core.unpack_factors_on_gpu,
        "average": _core.average_factors_on_gpu,
    }[work]


def _is_taken(entry: Entry) -> bool:
    factor, packed = entry.factor, entry.packed
    return (
        factor.is_cuda
        and packed.is_cuda
        and factor.dim() in (2, 3)
        and factor.dtype == packed.dtype in (torch.float32, torch.float64)
        and factor.get_device() == packed.get_device()
        and factor.stride(-1) == 1
        and packed.is_contiguous()
        and not _problem(factor.get_device())
    )


@functools.cache
def _problem(device: int) -> str:
    """Loads the kernels when it is first asked about a GPU."""
    return _core.optim_problem(device)


def _addresses(entry: Entry) -> tuple[int, int, int, int, int, int, float, float]:
    factor = entry.factor
    number, stride = (len(factor), factor.stride(0)) if factor.dim() == 3 else (1, 0)
    return (
        factor.data_ptr(),
        entry.packed.data_ptr(),
        factor.shape[-1],
        number,
        factor.stride(-2),
        stride,
        entry.scale,
        1 - entry.kept,
    )


def current_stream(device: int) -> int:
    """The stream on which this thread uses a CUDA device now, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream
