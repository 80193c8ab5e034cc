"""What the decoupled schedule does not take, by name."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import nn

from aiacc.collectives.reduce_ops import Average, Sum, name_of_op
from aiacc.torch.adapter import address_of
from aiacc.torch.decoupled.classes import check_elementwise
from aiacc.torch.reducer.gradients import NamedParameters

_OTHER = "use schedule='all_reduce'"


def check_arguments(
    optimizer: torch.optim.Optimizer,
    model: nn.Module | None,
    op: int,
    groups: object,
    gradient_as_bucket_view: bool,
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
    check_elementwise(optimizer)
    return model


def check_any(named: NamedParameters, parameters: int) -> None:
    """Raise ValueError if ``named``, of so many parameters those that are not frozen, are none."""
    if not named:
        raise ValueError(
            f"schedule='decoupled' with {parameters} parameters that are all frozen (expected some "
            "that need gradients, for frozen ones have no part in it); call requires_grad_() before"
        )


class _Span(NamedTuple):
    """The memory of a tensor, from its first element to its last."""

    device: str
    begin: int
    end: int
    name: str
    moves: bool


def check_apart(model: nn.Module, named: NamedParameters) -> None:
    """Raise ValueError if a parameter in ``named`` has no memory, or overlaps another tensor.

    They get other memory; a frozen parameter or a buffer of ``model`` would keep the old one.
    """
    for name, parameter in named:
        address_of(parameter, f"parameter {name!r}")
    own = {id(parameter) for _, parameter in named}
    others = chain(model.named_parameters(), model.named_buffers())
    spans = [_span(name, parameter, True) for name, parameter in named if parameter.numel()]
    spans += [
        _span(name, tensor, False)
        for name, tensor in others
        if id(tensor) not in own and type(tensor) in _PLAIN and _has_memory(tensor)
    ]
    furthest: dict[tuple[str, bool], _Span] = {}  # so far, of those that move and of the others
    for span in sorted(spans):
        for moves in (True, False) if span.moves else (True,):
            before = furthest.get((span.device, moves))
            if before is not None and span.begin < before.end:
                raise ValueError(
                    f"parameters or buffers {before.name!r} and {span.name!r} overlap in memory "
                    "(expected memory of their own with schedule='decoupled'); tie parameters by "
                    f"one nn.Parameter in both modules, give a buffer a clone(), or {_OTHER}"
                )
        last = furthest.setdefault((span.device, span.moves), span)
        if span.end > last.end:
            furthest[span.device, span.moves] = span


#: Classes of tensors that certainly have memory, if it is strided.
_PLAIN = (torch.Tensor, nn.Parameter)


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


def _span(name: str, tensor: torch.Tensor, moves: bool) -> _Span:
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return _Span(
        str(tensor.device), begin, begin + (reach + 1) * tensor.element_size(), name, moves
    )
