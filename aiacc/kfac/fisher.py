"""Targets for the Fisher matrix: drawn from what the model predicts, not those of the data.

Gradients for the data's targets give the *empirical* Fisher matrix, which a training step has
anyhow. Kunstner, Balles, Hennig, "Limitations of the Empirical Fisher Approximation", NeurIPS 2019,
say what is lost. Sampled targets give an unbiased estimate of the true one, for another backward
pass: ``loss(outputs, sample_targets(outputs, loss))``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_KNOWN = "CrossEntropyLoss, MSELoss, BCEWithLogitsLoss"


def sample_targets(
    outputs: Tensor, loss: nn.Module, generator: torch.Generator | None = None
) -> Tensor:
    """Targets from the distribution of which a loss is the negative logarithm.

    The expectation of g g^T over them, with g the gradient of a term of the loss by its outputs, is
    the Hessian of that term. So the Fisher matrix is the generalised Gauss-Newton matrix.

    Args:
        outputs: Of the model. The classes of a cross entropy are on axis 1, as torch has them; a
            term of a squared error has the last axis.
        loss: CrossEntropyLoss without weights and smoothing; MSELoss, whose noise has the variance
            1/2, or with the mean over C outputs C/2; BCEWithLogitsLoss without weights, of one
            output or as a sum.
        generator: Of random numbers, on the device of the outputs.

    Returns:
        Targets for ``loss``; no gradient flows through them.

    Raises:
        TypeError: A loss with another distribution.
    """
    outputs = outputs.detach()
    if isinstance(loss, nn.CrossEntropyLoss):
        if loss.weight is not None or loss.label_smoothing:
            raise TypeError(f"{loss} with weights or smoothing is no likelihood (expected neither)")
        probabilities = outputs.float().softmax(1).movedim(1, -1)
        drawn = torch.multinomial(probabilities.flatten(0, -2), 1, generator=generator)
        return drawn.view(probabilities.shape[:-1])
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
        return torch.bernoulli(outputs.sigmoid(), generator=generator)
    raise TypeError(
        f"no targets can be drawn for {loss} (expected one of {_KNOWN}); draw them yourself, or "
        "use the empirical Fisher matrix"
    )
