"""Preconditioned gradients, and how far they may go.

Gradients are matrices as `gradient_matrix` makes them: out x in, or a stack of those.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aiacc.kfac.rows import groups_of, has_bias, in_full


def gradient_matrix(module: nn.Module) -> Tensor:
    """The gradient of a layer as a new matrix in float32 (float64 stays).

    Returns:
        out x in (with the bias last), groups x out x in with groups; for an embedding features x
        entries.

    Raises:
        ValueError: A parameter has no gradient.
    """
    weight = _gradient(module, "weight")
    if isinstance(module, nn.Embedding):
        return weight.t().contiguous()
    groups = groups_of(module)
    found = weight.reshape(groups, weight.shape[0] // groups, -1)
    if has_bias(module):
        found = torch.cat([found, _gradient(module, "bias").view(groups, -1, 1)], 2)
    return found.squeeze(0) if groups == 1 else found


def write_gradient(module: nn.Module, matrix: Tensor) -> None:
    """Put a matrix, as `gradient_matrix` has it, into the gradients of a layer in their dtype."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    assert weight.grad is not None
    if isinstance(module, nn.Embedding):
        weight.grad.copy_(matrix.t())
        return
    if has_bias(module):
        bias = module.bias
        assert isinstance(bias, Tensor)
        assert bias.grad is not None
        bias.grad.copy_(matrix[..., -1].reshape(-1))
        matrix = matrix[..., :-1]
    weight.grad.copy_(matrix.reshape(weight.shape))


def _gradient(module: nn.Module, name: str) -> Tensor:
    gradient = getattr(module, name).grad
    if gradient is None:
        raise ValueError(
            f"{name} of {module} has no gradient (expected one after backward()); leave the layer "
            "out of this step"
        )
    return in_full(gradient.detach())


def by_inverses(gradient: Tensor, a_inverse: Tensor, g_inverse: Tensor) -> Tensor:
    """G^-1 gradient A^-1, in new memory.

    Args:
        gradient: out x in, or n x out x in.
        a_inverse: Of `inverses.invert`; one axis for a diagonal.
        g_inverse: The same.
    """
    found = g_inverse @ gradient
    return found * a_inverse if a_inverse.dim() == 1 else found @ a_inverse


def by_eigenvectors(
    gradient: Tensor,
    a: tuple[Tensor, Tensor],
    g: tuple[Tensor, Tensor],
    damping: float | Tensor,
) -> Tensor:
    """(A (x) G + damping I)^-1 gradient: the damping is exact, not split. In new memory.

    Args:
        gradient: out x in, or n x out x in.
        a: Eigenvalues and eigenvectors of A, as of `inverses.decompose`.
        g: Of G.
        damping: Of the product.
    """
    (a_values, a_vectors), (g_values, g_vectors) = a, g
    diagonal = a_values.dim() == 1 and not a_vectors.numel()
    found = g_vectors.mT @ gradient
    if not diagonal:
        found = found @ a_vectors
    found = found / (g_values.unsqueeze(-1) * a_values.unsqueeze(-2) + damping)
    found = g_vectors @ found
    return found if diagonal else found @ a_vectors.mT


def clip_factor(
    preconditioned: Sequence[Tensor],
    gradients: Sequence[Tensor],
    lr: float | Tensor,
    kl_clip: float,
) -> Tensor:
    """By which to multiply preconditioned gradients so that a step changes predictions little.

    min(1, sqrt(kl_clip / |lr^2 sum v g|)), as Ba, Grosse, Martens, "Distributed Second-Order
    Optimization using Kronecker-Factored Approximations", ICLR 2017, section 5. The host does not
    wait for it.

    Args:
        preconditioned: v of each layer.
        gradients: g of each layer, in the same order and shapes.
        lr: Learning rate of the step.
        kl_clip: The most change, > 0.

    Returns:
        Of no axis, on the device of the gradients.

    Raises:
        ValueError: No layers, or ``kl_clip`` is not positive.
    """
    if not kl_clip > 0:
        raise ValueError(f"kl_clip {kl_clip} (expected > 0; without it there is no clipping)")
    if not gradients:
        raise ValueError("no gradients to clip (expected those of one layer or more)")
    products = [
        torch.dot(v.reshape(-1), g.reshape(-1))
        for v, g in zip(preconditioned, gradients, strict=True)
    ]
    change = torch.stack(products).sum().abs() * lr**2
    return (kl_clip / change).sqrt().clamp(max=1.0)
