"""Kronecker factors A and G of a layer, from its inputs and the gradients of its outputs. Pure.

Martens, Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", ICML
2015; Grosse, Martens, ICML 2016, for convolutions; Eschenhagen et al., NeurIPS 2023, for all layers
that share weights among places. The loss is a mean over M terms (examples, or tokens). With N
examples, S places in each, inputs a and gradients g of the mean, A (x) G approximates the
layer's block of the Fisher matrix of the loss:

    expand   A = 1/(N S) sum a a^T               G = M sum g g^T                  over all places
    reduce   A = 1/N sum (mean a) (mean a)^T     G = M sum (sum g) (sum g)^T      over all examples

Everything is computed in float32, autocast or not; float64 stays.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aiacc.kfac.products import Products
from aiacc.kfac.rows import (
    Convolution,
    batched,
    by_places,
    gradient_rows,
    groups_of,
    has_bias,
    in_full,
    input_rows,
    with_ones,
)

APPROXIMATIONS = ("expand", "reduce")
#: Bytes of the patches of a convolution that exist at a time.
PATCH_BYTES = 32 << 20


def input_factor(
    module: nn.Module, inputs: Tensor, *, approx: str = "expand", patch_bytes: int = PATCH_BYTES
) -> Tensor:
    """A of a layer.

    Args:
        module: Layer that `rows.why_not` has nothing against.
        inputs: That it was called with; the first axis is that of examples.
        approx: "expand" or "reduce". Embeddings know the first only.
        patch_bytes: At most so many bytes of patches at a time, or those of one example.

    Returns:
        in x in, groups x in x in with groups; for an embedding its diagonal. New memory.

    Raises:
        ValueError: Of an approximation that is not known, or no examples.
    """
    reduce = _reduces(approx)
    inputs = batched(module, inputs.detach())
    if not inputs.numel():
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} (expected one example or more)")
    if isinstance(module, nn.Embedding):
        counts = torch.bincount(inputs.flatten(), minlength=module.num_embeddings)
        return counts.to(in_full(module.weight).dtype) / inputs.numel()
    with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        inputs = in_full(inputs)
        total = sums = None
        outside = by_places(module, inputs)
        number = 0
        for part in torch.split(inputs, _examples(module, inputs, reduce, patch_bytes)):
            rows = input_rows(module, part, reduce=reduce, places_outside=outside)
            if total is None or sums is None:
                groups, _, width = rows.shape
                total, sums = Products(groups, width, rows), rows.new_zeros(groups, width)
            total.add(rows)
            number += rows.shape[1]
            if has_bias(module):
                sums += rows.sum(1)
        assert total is not None
        assert sums is not None
        found = with_ones(module, total.take(), sums, number, places_outside=outside)
        found /= number
        return found if groups_of(module) > 1 else found.squeeze(0)


def gradient_factor(
    module: nn.Module,
    gradients: Tensor,
    *,
    approx: str = "expand",
    loss_terms: float | None = None,
    loss_scale: float | Tensor = 1.0,
) -> Tensor:
    """G of a layer.

    Args:
        module: Layer that `rows.why_not` has nothing against.
        gradients: Of the loss by the outputs of the module.
        approx: "expand" or "reduce".
        loss_terms: M, over which the loss is a mean; the number of examples if not given. Tokens
            that are predicted one by one each are a term.
        loss_scale: By which the mean was multiplied before the backward pass: a GradScaler's scale,
            1/k if k backward passes add up to a step, M for a loss that is a sum.

    Returns:
        out x out, groups x out x out with groups. New memory.

    Raises:
        ValueError: Of an approximation that is not known, or no examples.
    """
    reduce = _reduces(approx) and not isinstance(module, nn.Embedding)
    gradients = gradients.detach()
    if not isinstance(module, nn.Embedding):
        gradients = batched(module, gradients)
    if not gradients.numel():
        raise ValueError(
            f"gradients of shape {tuple(gradients.shape)} (expected one example or more)"
        )
    terms = gradients.shape[0] if loss_terms is None else loss_terms
    if terms < 1:
        raise ValueError(f"loss_terms {terms} (expected one or more)")
    with torch.no_grad(), torch.autocast(gradients.device.type, enabled=False):
        # Divided first: squares of scaled gradients leave float32's range before they do.
        gradients = in_full(gradients)
        if isinstance(loss_scale, Tensor) or loss_scale != 1:
            gradients = gradients / loss_scale
        rows = gradient_rows(module, gradients, reduce=reduce)
        products = Products(len(rows), rows.shape[-1], rows)
        products.add(rows)
        total = products.take()
        total *= terms
        return total if groups_of(module) > 1 else total.squeeze(0)


def average(old: Tensor | None, new: Tensor, decay: float) -> Tensor:
    """The running average of a factor: ``decay`` of the old, the rest new.

    Args:
        old: Which becomes the new average; None at first: there is no bias to an identity.
        new: Factor, which the caller gives away.
        decay: Weight of the old, from 0 to below 1.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay {decay} (expected 0 <= decay < 1, the weight of the old average)")
    return new if old is None else old.lerp_(new, 1 - decay)


class MicroBatches:
    """A factor of the whole batch, from those of the parts that gradients accumulate over."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._weight = 0.0

    def add(self, factor: Tensor, weight: float = 1.0) -> None:
        """Take a part's factor, which the caller gives away; ``weight`` is its share of examples.

        Each part's factor is that of its own mean loss: see ``loss_scale`` of `gradient_factor`.
        """
        if not weight > 0:
            raise ValueError(f"weight {weight} of a micro-batch (expected > 0, such as its size)")
        factor *= weight
        self._total = factor if self._total is None else self._total.add_(factor)
        self._weight += weight

    def take(self) -> Tensor | None:
        """The mean of what was added, and start over; None if nothing was."""
        total, weight = self._total, self._weight
        self._total, self._weight = None, 0.0
        return None if total is None else total.div_(weight)


def _reduces(approx: str) -> bool:
    if approx not in APPROXIMATIONS:
        raise ValueError(f"approx {approx!r} (expected one of {', '.join(APPROXIMATIONS)})")
    return approx == "reduce"


def _examples(module: nn.Module, inputs: Tensor, reduce: bool, patch_bytes: int) -> int:
    """How many examples to take at a time."""
    if reduce or not isinstance(module, Convolution):
        return inputs.shape[0]
    volume = inputs[0].numel() * inputs.element_size()
    for kernel, stride in zip(module.kernel_size, module.stride, strict=True):
        volume = volume * kernel // stride
    return max(1, patch_bytes // max(volume, 1))
