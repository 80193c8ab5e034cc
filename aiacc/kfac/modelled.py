"""Traces of K-FAC steps, modelled from tables of layers. Pure.

A of a layer is built before its forward pass, where its input is known, G behind its gradient. What
they take is proportional to their multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.kfac.costs import packed_bytes
from aiacc.planning.models import modelled
from aiacc.planning.models.kronecker import layers_of
from aiacc.planning.models.layers import Parameter
from aiacc.planning.trace import Tensor, Trace

_A, _G = " A", " G"


def factor_names(layer: str) -> tuple[str, str]:
    """Of A and G of a layer, in traces."""
    return layer + _A, layer + _G


def is_factor(name: str) -> bool:
    """Whether a tensor of a trace is one; others are gradients."""
    return name.endswith((_A, _G))


def kfac_trace(
    title: str, parameters: Sequence[Parameter], compute_s: float, factor_s: float
) -> Trace:
    """Factors A in the order of the forward pass, then factors G and gradients as they come.

    Args:
        title: Of the model.
        parameters: In the order of the forward pass.
        compute_s: Of both passes.
        factor_s: Of all factors.

    Raises:
        ValueError: No layer has factors.
    """
    layers = layers_of(parameters)
    if not layers:
        raise ValueError(
            f"{title} has no layer with factors (expected a convolution or a linear layer)"
        )
    base = modelled(title, parameters, compute_s)
    unit = factor_s / sum(layer.a_work + layer.g_work for layer in layers)
    first = {tensor.name: tensor.need_s for tensor in base.tensors}
    shift, tensors = 0.0, []
    for layer in layers:
        shift += layer.a_work * unit
        ready_s = first[layer.parameters[0]] + shift
        tensors.append(_factor(factor_names(layer.name)[0], layer.a_dim, ready_s))
    all_a_s = shift
    of_weight = {layer.parameters[0]: layer for layer in layers}
    for tensor in base.tensors:
        ready_s = tensor.ready_s + shift
        tensors.append(Tensor(tensor.name, tensor.bytes, tensor.dtype, ready_s, tensor.need_s))
        if tensor.name in of_weight:
            layer = of_weight[tensor.name]
            shift += layer.g_work * unit
            ready_s = tensor.ready_s + shift
            tensors.append(_factor(factor_names(layer.name)[1], layer.g_dim, ready_s))
    forward_s, backward_s = base.forward_s + all_a_s, base.backward_s + factor_s - all_a_s
    return Trace(title, tuple(tensors), forward_s, backward_s, "modelled")


def _factor(name: str, dim: int, ready_s: float) -> Tensor:
    # Needed when it is to be inverted, before the next forward pass.
    return Tensor(name, packed_bytes(dim), "float32", ready_s, 0.0)
