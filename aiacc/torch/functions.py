"""Collectives on models, optimizers and Python objects, made of those on tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from aiacc import _core, arguments
from aiacc.collectives.labels import label_of
from aiacc.collectives.objects import allgather_object, broadcast_object
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import check_overwritten, device_of, plain
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled.awaited import is_awaited
from aiacc.torch.decoupled.optimizer import DecoupledDistributed
from aiacc.torch.mpi_ops import broadcast_async_, synchronize
from aiacc.torch.wrapped_optimizer import kept_shared

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor] | torch.Tensor], root_rank: int
) -> None:
    """Overwrite parameters with those of ``root_rank``, as one does before training starts.

    Collective: every rank, with the same names, shapes and dtypes.
    Blocks: until all are there.

    Args:
        params: A ``state_dict()``, or a list of tensors or of (name, tensor) such as
            ``list(model.named_parameters())``. Tensors of any dtype, with memory of their own:
            no DTensor, as FSDP2 has them. Entries that are None are left out.
        root_rank: Global rank to copy from.

    Raises:
        TypeError: ``root_rank`` is no whole number.
        ValueError: ``params`` is something else, a generator among others.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    arguments.check({"root_rank": root_rank})
    if isinstance(params, Mapping):
        named = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, list | tuple):
        named = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    else:
        raise ValueError(
            f"params of type {type(params).__name__} (expected a state_dict() or a list of "
            "(name, tensor)); wrap a generator in list(...)"
        )
    for entry in named:
        if len(entry) != 2 or not isinstance(entry[0], str | None):
            raise ValueError(
                f"params contains {entry!r:.100} (expected (name, tensor)); pass "
                "model.state_dict(), or list(model.named_parameters())"
            )
    problem = _problem_of(named)
    if problem:
        raise ValueError(problem)
    in_flight.overwrite([tensor for _, tensor in named])
    with torch.no_grad():
        _broadcast_tensors([(n, t) for n, t in named if t is not None], root_rank)


def _problem_of(named: list[tuple[Any, Any]]) -> str:
    """Why these cannot be sent, before one of them is under way; "": they can."""
    for name, tensor in named:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            return (
                f"parameter {name!r} is a {type(tensor).__name__} (expected torch.Tensor); "
                "use broadcast_object for it"
            )
        try:
            if tensor is not None and not is_awaited(tensor):
                check_overwritten(tensor, label_of("broadcast", name))
        except ValueError as error:
            return str(error)
    return ""


def _broadcast_tensors(named: list[tuple[Any, torch.Tensor]], root_rank: int) -> None:
    """In place, whatever the strides of the tensors; all are under way at the same time."""
    copies: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    try:
        for name, tensor in named:
            sent = plain(tensor, label_of("broadcast", name))
            copies.append((broadcast_async_(sent, root_rank, name), sent, tensor))
    except Exception:
        for handle, *_ in copies:  # the others have started the same
            with contextlib.suppress(CollectiveError, ValueError):
                synchronize(handle)
        raise
    _core.flush()
    for handle, sent, tensor in copies:
        synchronize(handle)
        if sent.data_ptr() != tensor.data_ptr():
            tensor.copy_(sent)


class _Tensor(NamedTuple):
    """Stands for a tensor while the structure around it travels."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
) -> None:
    """Give every rank the state and the options of the optimizer of ``root_rank``.

    The other ranks need no state of their own; what they have is replaced in the same dictionaries,
    which a wrapped optimizer and its schedulers may hold. On a rank without state, parameters that
    have no gradient get one of zeros, as in Horovod.

    Collective: every rank, with optimizers of the same class and parameter groups.
    Blocks: until the state is there.

    Args:
        optimizer: Any but LBFGS.
        root_rank: Global rank to copy from.
        model: Its sparse embeddings get no gradients.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: The optimizer is LBFGS, or has other parameter groups than the root's.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    arguments.check(
        locals(), optimizer=arguments.OPTIMIZER, model=arguments.or_none(arguments.MODULE)
    )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "broadcast_optimizer_state got an LBFGS optimizer (expected one with a state per "
            "parameter); LBFGS keeps closures that cannot be sent, so start it anew on every rank"
        )
    if isinstance(optimizer, DecoupledDistributed):
        DecoupledDistributed.consolidate_state_dict(optimizer, None)
    elif not optimizer.state:
        _add_gradients(optimizer, model)
    is_root = _core.rank() == root_rank
    tensors: list[torch.Tensor] = []
    own = optimizer.state_dict() if is_root else None
    sent: Any = _take_tensors(own, tensors)
    named = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
    found = sent, _problem_of(named)
    state, problem = broadcast_object(found, root_rank, name="optimizer_state")
    if problem:  # which every rank is told
        raise ValueError(f"state of an optimizer on rank {root_rank}: {problem}")
    if not is_root:
        # Of the decoupled schedule a rank may have no part of a group.
        first = next(p for group in optimizer.param_groups for p in group["params"])
        state = _put_tensors(state, tensors, first)
    named = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
    with torch.no_grad():
        _broadcast_tensors(named, root_rank)
    if isinstance(optimizer, DecoupledDistributed):
        optimizer.load_state_dict(state if own is None else own)
    elif not is_root:
        _load_in_place(optimizer, state)


def _add_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Zeros for parameters without gradient, except where gradients are sparse."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    modules = () if model is None else model.modules()
    sparse = {module.weight for module in modules if getattr(module, "sparse", False)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None and parameter not in sparse:
                parameter.grad = torch.zeros_like(parameter)


def _load_in_place(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> None:
    """`load_state_dict` that keeps the dictionaries of ``optimizer`` and the received dtypes."""
    with kept_shared(optimizer):
        optimizer.load_state_dict(received)
    numbers = [number for group in received["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in received["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor):  # loading has cast it to the parameter's dtype
                optimizer.state[parameter][name] = value


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` with a `_Tensor` in the place of every tensor, which is appended to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Tensor(tuple(value.shape), value.dtype, device_of(value) < 0)
    if isinstance(value, dict):
        return {key: _take_tensors(entry, tensors) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_take_tensors(entry, tensors) for entry in value])
    return value


def _put_tensors(value: Any, tensors: list[torch.Tensor], parameter: torch.Tensor) -> Any:
    """The inverse of `_take_tensors` with new tensors, in the same order.

    What is on a device of the root comes to the device of ``parameter`` here.
    """
    if isinstance(value, _Tensor):
        tensors.append(
            torch.empty(value.shape, dtype=value.dtype, device="cpu")
            if value.on_host
            else parameter.new_empty(value.shape, dtype=value.dtype, requires_grad=False)
        )
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_tensors(entry, tensors, parameter) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_put_tensors(entry, tensors, parameter) for entry in value])
    return value
