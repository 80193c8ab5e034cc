"""What the decoupled schedule does not take, by name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from aiacc.collectives.reduce_ops import Average, Sum, name_of_op
from aiacc.torch.decoupled.classes import check_elementwise
from aiacc.torch.reducer.gradients import NamedParameters

_OTHER = "use schedule='all_reduce'"


def check_arguments(
    optimizer: torch.optim.Optimizer,
    model: nn.Module | None,
    op: int,
    groups: object,
    gradient_as_bucket_view: bool,
    bucket_bytes: int,
) -> nn.Module:
    """``model`` itself.

    Raises:
        ValueError: One of these arguments of `DistributedOptimizer` is not for this schedule.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"schedule='decoupled' with model={model!r:.50} (expected the torch.nn.Module that is "
            "trained): its modules wait for their parameters; pass model=model"
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"schedule='decoupled' with op={name_of_op(op)} (expected Average or Sum); {_OTHER}"
        )
    if groups is not None:
        raise ValueError(
            "schedule='decoupled' with groups (expected bucket_bytes or a plan to say which "
            f"parameters travel together); leave groups out, or {_OTHER}"
        )
    if gradient_as_bucket_view:
        raise ValueError(
            "schedule='decoupled' with gradient_as_bucket_view=True (expected False: gradients are "
            "views of buckets in any case); leave it out"
        )
    if bucket_bytes <= 0:
        raise ValueError(f"bucket_bytes={bucket_bytes} (expected a positive number)")
    check_elementwise(optimizer)
    return model


def check_any(named: NamedParameters, parameters: int) -> None:
    """Raise ValueError if ``named``, of so many parameters those that are not frozen, are none."""
    if not named:
        raise ValueError(
            f"schedule='decoupled' with {parameters} parameters that are all frozen (expected some "
            "that need gradients, for frozen ones have no part in it); call requires_grad_() before"
        )


def check_apart(named: NamedParameters) -> None:
    """Raise ValueError if parameters share memory, which each would have its own of."""
    spans = []
    for name, parameter in named:
        if parameter.numel():
            reach = sum(
                (n - 1) * s for n, s in zip(parameter.shape, parameter.stride(), strict=True)
            )
            begin = parameter.data_ptr()
            end = begin + (reach + 1) * parameter.element_size()
            spans.append((str(parameter.device), begin, end, name))
    spans.sort()
    for (device, _, end, name), (next_device, begin, _, next_name) in pairwise(spans):
        if device == next_device and begin < end:
            raise ValueError(
                f"parameters {name!r} and {next_name!r} share memory (expected memory of their "
                "own with schedule='decoupled'); tie them by one nn.Parameter in both modules, or "
                f"{_OTHER}"
            )
