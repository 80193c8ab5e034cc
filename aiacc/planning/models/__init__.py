"""Traces of published networks, modelled from their tables of layers. Pure.

Shapes are those of the networks. Times are modelled, not measured: a gradient takes a share of the
backward pass, which is proportional to the operations of its layer, but for EVEN of the time, which
all tensors share alike; the backward pass takes twice as long as the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiacc.planning.models.bert import bert
from aiacc.planning.models.convolutional import densenet, inception_v4, resnet, vgg16
from aiacc.planning.models.layers import Parameter
from aiacc.planning.trace import Tensor, Trace

#: Share of the time of a pass that has nothing to do with operations.
EVEN = 0.03
_TOKENS = 128


@dataclass(frozen=True)
class Model:
    """A published network."""

    title: str
    #: Parameters in the order of the forward pass.
    parameters: Callable[[], list[Parameter]]
    #: Samples per step and rank.
    batch: int
    #: Seconds of a step on one GPU, forward and backward, with that batch: as published by the
    #: authors of MG-WFBP and DeAR where they did, else by the operations at the rate of ResNet-50.
    compute_s: float


MODELS = {
    "resnet50": Model("ResNet-50", lambda: resnet((3, 4, 6, 3)), 64, 0.253),
    "resnet152": Model("ResNet-152", lambda: resnet((3, 8, 36, 3)), 32, 0.274),
    "vgg16": Model("VGG-16", vgg16, 64, 0.955),
    "densenet201": Model("DenseNet-201", lambda: densenet((6, 12, 48, 32), 32, 64), 32, 0.219),
    "inception_v4": Model("Inception-v4", inception_v4, 64, 0.757),
    "bert_base": Model("BERT-Base", lambda: bert(12, 768, _TOKENS), 64, 0.306),
    "bert_large": Model("BERT-Large", lambda: bert(24, 1024, _TOKENS), 8, 0.133),
}


def trace_of(name: str, compute_s: float | None = None, dtype: str = "float32") -> Trace:
    """The modelled trace of a network, whose step computes for so many seconds.

    Raises ValueError for another name, which lists the known ones.
    """
    if name not in MODELS:
        raise ValueError(f"model {name!r} (expected one of {', '.join(MODELS)})")
    model = MODELS[name]
    return modelled(
        model.title, model.parameters(), model.compute_s if compute_s is None else compute_s, dtype
    )


def modelled(
    title: str, parameters: Sequence[Parameter], compute_s: float, dtype: str = "float32"
) -> Trace:
    """The trace of parameters in the order of the forward pass."""
    width = {"float32": 4, "float16": 2, "bfloat16": 2}[dtype]
    work = sum(parameter.multiply_adds for parameter in parameters)
    shares = [
        EVEN / len(parameters) + (1 - EVEN) * parameter.multiply_adds / work
        for parameter in parameters
    ]
    forward_s, backward_s = compute_s / 3, compute_s * 2 / 3
    before = 0.0  # share of the forward pass that comes before
    needs = []
    for share in shares:
        needs.append(before)
        before += share
    tensors, after = [], 0.0
    for parameter, share, need in zip(
        reversed(parameters), reversed(shares), reversed(needs), strict=True
    ):
        after += share
        tensors.append(
            Tensor(
                parameter.name,
                parameter.elements * width,
                dtype,
                min(forward_s + after * backward_s, forward_s + backward_s),
                need * forward_s,
            )
        )
    return Trace(title, tuple(tensors), forward_s, backward_s, "modelled")
