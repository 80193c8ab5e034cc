"""Targets for the Fisher matrix: drawn from what the model predicts, not those of the data.

Also over how many terms (examples, tokens) a loss is a mean.

Gradients for the data's targets give the *empirical* Fisher matrix, which a training step has
anyhow. Kunstner, Balles, Hennig, "Limitations of the Empirical Fisher Approximation", NeurIPS 2019,
say what is lost. Sampled targets give an unbiased estimate of the true one, for another backward
pass: ``loss(outputs, sample_targets(outputs, loss))``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

_KNOWN = "CrossEntropyLoss, MSELoss, BCEWithLogitsLoss"


#: No class, and so no target that can be drawn; torch's default.
_IGNORED = -100


def sample_targets(
    outputs: Tensor,
    loss: nn.Module,
    generator: torch.Generator | None = None,
    targets: Tensor | None = None,
) -> Tensor:
    """Targets from the distribution of which a loss is the negative logarithm.

    The expectation of g g^T over them, with g the gradient of a term of the loss by its outputs, is
    the Hessian of that term. So the Fisher matrix is the generalised Gauss-Newton matrix.

    Args:
        outputs: Of the model. The classes of a cross entropy are on axis 1, as torch has them; a
            term of a squared error has the last axis. Where they are not finite any target is
            drawn: the loss is not finite there.
        loss: CrossEntropyLoss without weights and smoothing; MSELoss, whose noise has the variance
            1/2, or with the mean over C outputs C/2; BCEWithLogitsLoss without weights, of one
            output or as a sum.
        generator: Of random numbers, on the device of the outputs.
        targets: Those of the data, for a cross entropy: what it ignores of them stays ignored.

    Returns:
        Targets for ``loss``; no gradient flows through them.

    Raises:
        TypeError: A loss with another distribution.
        ValueError: Targets of another shape, or a loss that ignores a class, which may be drawn.
    """
    outputs = outputs.detach()
    if isinstance(loss, nn.CrossEntropyLoss):
        if loss.weight is not None or loss.label_smoothing:
            raise TypeError(f"{loss} with weights or smoothing is no likelihood (expected neither)")
        probabilities = outputs.float().softmax(1).movedim(1, -1)
        if 0 <= loss.ignore_index < probabilities.shape[-1]:
            raise ValueError(
                f"ignore_index={loss.ignore_index} is one of {probabilities.shape[-1]} classes "
                f"(expected none of them, for it may be drawn); use {_IGNORED}"
            )
        # A device would abort at a distribution of NaN; all classes alike stand for it.
        likely = probabilities.flatten(0, -2).nan_to_num(1.0)
        drawn = torch.multinomial(likely, 1, generator=generator)
        drawn = drawn.view(probabilities.shape[:-1])
        if targets is None or targets.is_floating_point():
            return drawn
        if targets.shape != drawn.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} (expected {tuple(drawn.shape)}, as the "
                "loss takes them)"
            )
        return drawn.masked_fill(targets == loss.ignore_index, loss.ignore_index)
    if isinstance(loss, nn.MSELoss):
        terms = outputs.shape[-1] if loss.reduction == "mean" else 1
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return outputs + math.sqrt(terms / 2) * noise
    if isinstance(loss, nn.BCEWithLogitsLoss):
        one = loss.reduction == "sum" or outputs.shape[-1] == 1
        if loss.weight is not None or loss.pos_weight is not None or not one:
            raise TypeError(
                f"{loss} with weights, or a mean over {outputs.shape[-1]} outputs, is no "
                "likelihood (expected no weights, and a sum or one output)"
            )
        return torch.bernoulli(outputs.sigmoid().nan_to_num(0.5), generator=generator)
    raise TypeError(
        f"no targets can be drawn for {loss} (expected one of {_KNOWN}); draw them yourself, or "
        "use the empirical Fisher matrix"
    )


def sampled_loss(
    outputs: Tensor, loss: nn.Module, targets: Tensor | None = None
) -> tuple[Tensor, int]:
    """The loss for drawn targets, and how many terms it is a mean or a sum of.

    Arguments and errors are those of `sample_targets`; a loss may ignore a class here.
    """
    if isinstance(loss, nn.CrossEntropyLoss) and loss.ignore_index != _IGNORED:
        # A class that it ignores may be predicted, and so drawn; then it counts.
        if targets is not None and not targets.is_floating_point():
            targets = targets.masked_fill(targets == loss.ignore_index, _IGNORED)
        loss = copy.copy(loss)
        loss.ignore_index = _IGNORED
    drawn = sample_targets(outputs, loss, targets=targets)
    if isinstance(loss, nn.CrossEntropyLoss):
        terms = drawn.numel() if targets is None else int((drawn != _IGNORED).sum())
    elif isinstance(loss, nn.BCEWithLogitsLoss) and outputs.ndim == 1:
        terms = len(outputs)
    else:
        terms = outputs.numel() // outputs.shape[-1]
    return loss(outputs, drawn), terms


def terms_of(outputs: Any, places: int, channels: int) -> int:
    """Over how many terms the loss of a model is a mean, as far as its outputs tell. Pure.

    It is a mean over what is predicted: over tokens if tokens are, over pixels if pixels are, over
    examples if they are pooled.

    Args:
        outputs: What the model returned: tensors, also in lists, tuples, dicts and data classes.
        places: Rows that the last layer computed, such as examples times tokens.
        channels: Elements of such a row.

    Returns:
        ``places`` if outputs hold that layer's, or no tensor but a loss.
    """
    tensors = [one for one in _tensors_of(outputs) if one.requires_grad and one.ndim]
    if not tensors or any(one.numel() == places * channels for one in tensors):
        return places
    # They were pooled or scaled up since, or the layer that gave them has no factors.
    shape = tensors[0].shape
    if len(shape) <= 2:
        return shape[0]
    terms = {axis: tensors[0].numel() // max(shape[axis], 1) for axis in (-1, 1)}
    likely = [axis for axis in terms if terms[axis] == places]
    likely += [axis for axis in terms if shape[axis] == channels]
    return terms[[*likely, -1 if len(shape) == 3 else 1][0]]


def _tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_of(one)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _tensors_of(getattr(value, one.name))
