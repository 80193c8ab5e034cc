"""The largest elements of a tensor by a threshold, which is found without sorting."""

from __future__ import annotations

import operator

import torch

from aiacc import _core
from aiacc.torch.adapter import plain

_EXACT, _REFERENCE = 1, 2
MODES = {"exact": _EXACT, "reference": _REFERENCE}


def topk_threshold(
    tensor: torch.Tensor, k: int, mode: str = "exact"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k elements of largest magnitude, and where they are.

    In place of ``torch.topk(tensor.abs().flatten(), k)``, which sorts: one thread takes a fraction
    of its time for large tensors (bench/selection.py).

    Blocks: until they are found. Not collective, and not differentiable.

    Args:
        tensor: float32 in host memory, of any shape, with fewer than 2^32 elements.
        k: How many.
        mode: "exact"; or "reference": MSTopK of Shi et al. (MLSys 2021, arXiv 2010.10458), 30
            samplings of thresholds between mean and maximum of the magnitudes.

    Returns:
        Values as float32, with their signs, and indices into the flattened tensor as int64, both
        of shape [k] and in the order of the indices.

    Raises:
        ValueError: Another dtype, device or layout, a k that is no int or that the tensor does not
            have, an unknown mode, or an element that is NaN or infinite.
    """
    try:
        count = operator.index(k)  # tensors have it, whether they are one whole number or not
    except (TypeError, ValueError, RuntimeError):
        count = None
    if not isinstance(tensor, torch.Tensor) or isinstance(k, bool) or count is None:
        raise ValueError(
            f"topk_threshold of {type(tensor).__name__} with k={k!r} (expected a tensor and an int)"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"topk_threshold of a tensor of layout {tensor.layout} (expected a dense one); use "
            "tensor.to_dense()"
        )
    if tensor.dtype != torch.float32 or not tensor.is_cpu:
        raise ValueError(
            f"topk_threshold of {tensor.dtype} on {tensor.device} (expected float32 in host "
            "memory); use tensor.cpu().float()"
        )
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode={mode!r} (expected one of {', '.join(MODES)})")
    if not 0 <= count <= tensor.numel():
        raise ValueError(f"k={count} (expected 0 to {tensor.numel()}, the number of elements)")
    flat = plain(tensor, "topk_threshold").view(-1)
    pairs = torch.empty(2 * count, dtype=torch.float32, device="cpu")
    finite = _core.select_largest(
        pairs.data_ptr(), flat.data_ptr(), flat.numel(), count, MODES[mode]
    )
    if not finite:
        raise ValueError(
            "topk_threshold of a tensor with NaN or infinity (expected finite numbers); use "
            "torch.nan_to_num"
        )
    # uint32 has few functions in torch.
    indices = pairs[count:].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    return pairs[:count], indices
