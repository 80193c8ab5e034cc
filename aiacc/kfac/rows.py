"""Layers as matrices: their inputs and the gradients of their outputs as rows, their weights.

A layer multiplies rows a (its inputs, or patches of them) with a matrix W, out x in, whose last
column is the bias. A convolution with groups is that many layers beside one another, each with
factors of its own, for a weight sees no input of another group. An embedding is a layer whose
rows have a single 1. One that is used at several places of an example (pixels, tokens) *shares*
its weights among them; Eschenhagen et al., "Kronecker-Factored Approximate Curvature for Modern
Neural Network Architectures", NeurIPS 2023, section 3, say what to do then (`factors`).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def why_not(module: nn.Module) -> str | None:
    """Why a module has no factors, None if it has."""
    kind = type(module).__name__
    if not isinstance(module, (nn.Linear, nn.Embedding, *Convolution)):
        return f"{kind} has no Kronecker factors (Linear, Conv1d to Conv3d and Embedding have)"
    if isinstance(module, nn.Embedding) and (module.sparse or module.scale_grad_by_freq):
        return f"{kind} with sparse or scaled gradients (expected sparse=scale_grad_by_freq=False)"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "MultiheadAttention takes its weight without calling it"
    if isinstance(module.weight, nn.UninitializedParameter):
        return f"{kind} has no shape yet; run a forward pass first"
    if not isinstance(module.weight, nn.Parameter):
        return f"the weight of {kind} is computed from others, as by weight_norm"
    if module.weight.is_complex():
        return f"the weight of {kind} is complex"
    if not module.weight.requires_grad:
        return f"the weight of {kind} is frozen"
    bias = getattr(module, "bias", None)
    if not (bias is None or isinstance(bias, nn.Parameter) or "bias" in module._buffers):
        return f"the bias of {kind} is computed from others, as by pruning"
    return None


def has_bias(module: nn.Module) -> bool:
    """Whether the matrix of a layer has a column for the bias: one that is trained."""
    bias = getattr(module, "bias", None)
    return isinstance(bias, Tensor) and bias.requires_grad


def groups_of(module: nn.Module) -> int:
    """Layers that a module is: more than one for a convolution with groups."""
    return module.groups if isinstance(module, Convolution) else 1


def kernel_places(module: nn.Module) -> int:
    """Places of the kernel of a convolution, 1 for other layers."""
    return prod(module.kernel_size) if isinstance(module, Convolution) else 1


def factor_shapes(module: nn.Module) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of A and G: d x d, groups x d x d with groups, and d for the diagonal of an embedding.

    Raises:
        TypeError: The module has no factors; the text says why.
    """
    if reason := why_not(module):
        raise TypeError(reason)
    weight = module.weight
    assert isinstance(weight, Tensor)
    if isinstance(module, nn.Embedding):
        entries, features = weight.shape
        return (entries,), (features, features)
    groups = groups_of(module)
    a = weight[0].numel() + has_bias(module)
    g = weight.shape[0] // groups
    before = (groups,) if groups > 1 else ()
    return (*before, a, a), (*before, g, g)


def patches(module: nn.Module, inputs: Tensor) -> Tensor:
    """The patches that a convolution multiplies, a view of its padded input if it can be.

    Args:
        module: Conv1d, Conv2d or Conv3d, with any stride, padding and its mode, dilation, groups.
        inputs: N x channels x size of the image.

    Returns:
        N x groups x channels of a group x size of the output x size of the kernel.
    """
    assert isinstance(module, Convolution)
    padding = _padding(module)
    if any(padding):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, padding, mode)
    found = inputs.reshape(len(inputs), module.groups, -1, *inputs.shape[2:])
    for axis, (kernel, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True), start=3
    ):
        found = found.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return found


def _padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """Before and behind each axis, the last first, as functional.pad wants it."""
    found: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            both = module.dilation[axis] * (module.kernel_size[axis] - 1)
            found += [both // 2, both - both // 2]
        elif module.padding == "valid":
            found += [0, 0]
        else:
            found += [int(module.padding[axis])] * 2
    return found


def batched(module: nn.Module, values: Tensor) -> Tensor:
    """``values``, inputs or outputs of a layer, with the axis of examples if that is missing."""
    least = 1 if isinstance(module, nn.Embedding) else 2
    if isinstance(module, Convolution):
        least = 2 + len(module.kernel_size)
    return values if values.dim() >= least else values.unsqueeze(0)


def by_places(module: nn.Module, inputs: Tensor) -> bool:
    """Whether columns had better be in the order of the kernel's places, all channels of each.

    Patches are copied in runs of channels then; but the product has to be put into the order of
    weights, which have the channels outside. That is worth it for more rows than columns.
    """
    if not isinstance(module, Convolution):
        return False
    rows = inputs[:, 0].numel() // prod(module.stride)
    return rows > module.weight[0].numel() and kernel_places(module) > 1


def input_rows(module: nn.Module, inputs: Tensor, *, reduce: bool, places_outside: bool) -> Tensor:
    """What a layer multiplies: groups x rows x in, with no 1 for the bias.

    Args:
        module: Linear or a convolution.
        inputs: Of the module, with an axis of examples first.
        reduce: One row for each example, the mean over the places that share the weights, instead
            of one for each place.
        places_outside: See `by_places`; columns are in the order of weights without it.
    """
    if not isinstance(module, Convolution):
        if reduce and inputs.dim() > 2:
            inputs = inputs.flatten(1, -2).mean(1)
        return inputs.reshape(1, -1, inputs.shape[-1])
    if places_outside:
        inputs = inputs.movedim(1, -1).contiguous().movedim(-1, 1)
    found = patches(module, inputs)
    size = len(module.kernel_size)
    places, kernel = list(range(3, 3 + size)), list(range(3 + size, 3 + 2 * size))
    columns = [*kernel, 2] if places_outside else [2, *kernel]
    found = found.permute(1, 0, *places, *columns)
    if reduce:
        return found.mean([place - 1 for place in places]).flatten(2)
    return found.reshape(module.groups, -1, module.weight[0].numel())


def with_ones(
    module: nn.Module, products: Tensor, sums: Tensor, number: int, *, places_outside: bool
) -> Tensor:
    """What the products of rows are in the order of weights, and if they ended in a 1 for a bias.

    Args:
        module: Layer.
        products: groups x width x width, in the order of `input_rows`.
        sums: groups x width, of the rows, in the same order.
        number: Of rows.
        places_outside: As for `input_rows`.
    """
    groups, width = sums.shape
    places = kernel_places(module) if places_outside else 1
    bias = has_bias(module)
    if places == 1 and not bias:
        return products
    dim = width + bias
    found = products.new_empty(groups, dim, dim)
    split = (groups, places, -1)
    inner = products.view(*split, places, width // places).permute(0, 2, 1, 4, 3)
    found[:, :width, :width].view(inner.shape).copy_(inner)
    if bias:
        column = sums.view(split).mT.flatten(1)
        found[:, :width, width] = column
        found[:, width, :width] = column
        found[:, width, width] = number
    return found


def gradient_rows(module: nn.Module, gradients: Tensor, *, reduce: bool) -> Tensor:
    """Gradients of the outputs of a layer: groups x rows x out of a group.

    Args:
        module: A layer.
        gradients: With an axis of examples first.
        reduce: One row for each example, the sum over places, instead of one for each place.
    """
    if isinstance(module, Convolution):
        found = gradients.reshape(len(gradients), module.groups, -1, gradients[0, 0].numel())
        if reduce:
            return found.sum(3).transpose(0, 1)
        # Features stay outside, where whole images are copied; BLAS takes either.
        return found.permute(1, 2, 0, 3).flatten(2).mT
    if reduce and gradients.dim() > 2:
        gradients = gradients.flatten(1, -2).sum(1)
    return gradients.reshape(1, -1, gradients.shape[-1])


def in_full(values: Tensor) -> Tensor:
    """``values`` in float32, unless they are float64: what factors are computed in."""
    return values if values.dtype == torch.float64 else values.float()
