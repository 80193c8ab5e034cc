"""Norms of gradients that lie in the shards of several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from aiacc.collectives.reduce_ops import Max, Sum
from aiacc.process_sets import ProcessSet
from aiacc.torch.mpi_ops import allreduce_


def total_norm(
    gradients: Sequence[torch.Tensor], norm_type: float, process_set: ProcessSet
) -> torch.Tensor:
    """The norm of all ranks' ``gradients`` together, in float64 and host memory.

    Collective: every rank of the process set.
    Blocks: until the ranks have added up their parts.

    Raises:
        ValueError: ``norm_type`` is 0, -inf or NaN.
    """
    order = float(norm_type)
    if order in (0, -math.inf) or math.isnan(order):  # of which parts have no norm together
        raise ValueError(f"norm_type={norm_type!r} (expected another number, or inf); pass 2.0")
    norms = [torch.linalg.vector_norm(g, order, dtype=_wide(g)).double() for g in gradients]
    none = torch.zeros(1, dtype=torch.float64, device="cpu")
    own = torch.stack([norm.cpu() for norm in norms]) if norms else none
    if math.isinf(order):
        total = own.max().reshape(1)
        return allreduce_(total, None, "decoupled_norm", Max, process_set=process_set)[0]
    total = own.pow(order).sum().reshape(1)
    return allreduce_(total, None, "decoupled_norm", Sum, process_set=process_set)[0] ** (1 / order)


def scale(gradients: Sequence[torch.Tensor], max_norm: float, total: torch.Tensor) -> None:
    """Clip to ``max_norm``, with the formula of ``torch.nn.utils.clip_grad_norm_``."""
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0).item()
    for gradient in gradients:
        gradient.mul_(factor)


def spread_infinity(
    gradients: Sequence[torch.Tensor], found: bool, process_set: ProcessSet
) -> None:
    """Put infinity into the dense ``gradients`` of every rank if any has ``found`` some, or NaN.

    Collective: every rank of the process set.
    Blocks: until the ranks have compared.
    """
    flag = torch.tensor([int(found)], dtype=torch.uint8, device="cpu")
    allreduce_(flag, None, "finite_gradients", Max, process_set=process_set)
    if flag.item() and not found and gradients:
        gradients[0].fill_(math.inf)  # whatever its strides


def are_finite(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether all elements are. Blocks: of CUDA tensors until they are computed."""
    return all(map(_is_finite, gradients))


def _is_finite(gradient: torch.Tensor) -> bool:
    # A sum needs no memory; but that of large finite elements may overflow.
    total = gradient.sum(dtype=_wide(gradient))
    return bool(total.isfinite()) or bool(gradient.isfinite().all())


def _wide(gradient: torch.Tensor) -> torch.dtype:
    return torch.promote_types(gradient.dtype, torch.float32)
