"""Collectives on models, optimizers and Python objects, made of those on tensors."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class _Tensor:
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
        ValueError: The optimizer is LBFGS; on every rank if that of one is of another class or has
            other parameter groups than the root's, or one cannot send or load the state.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    arguments.check(
        locals(), optimizer=arguments.OPTIMIZER, model=arguments.or_none(arguments.MODULE)
    )
    if root_rank >= _core.size():
        raise ValueError(f"root_rank={root_rank} (expected a rank, 0 to {_core.size() - 1})")
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
    own = sent = None
    with _shared("pack"):
        if is_root:
            own = optimizer.state_dict()
            sent = _kind_of(optimizer), _take_tensors(own, tensors)
            if problem := _problem_of(_numbered(tensors)):
                raise ValueError(problem)
    with _shared("take"):
        kind, state = broadcast_object(sent, root_rank, name="optimizer_state")
        if kind != _kind_of(optimizer):
            raise ValueError(
                f"{_kind_of(optimizer)} (expected {kind}, as on rank {root_rank}); make the same "
                "optimizer, with the same parameters in its groups, on every rank"
            )
        if not is_root:
            # Of the decoupled schedule a rank may have no part of a group.
            first = next(p for group in optimizer.param_groups for p in group["params"])
            state = _put_tensors(state, tensors, first)
    with torch.no_grad():
        _broadcast_tensors(_numbered(tensors), root_rank)
    with _shared("load"):
        if isinstance(optimizer, DecoupledDistributed):
            optimizer.load_state_dict(state if own is None else own)
        elif not is_root:
            _load_in_place(optimizer, state)


def _numbered(tensors: list[torch.Tensor]) -> list[tuple[Any, torch.Tensor]]:
    return [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    """What has to be the same on all ranks."""
    if isinstance(optimizer, DecoupledDistributed):
        return type(optimizer).__name__  # whose groups are of this rank's part
    sizes = ", ".join(str(len(group["params"])) for group in optimizer.param_groups)
    return f"{type(optimizer).__name__} with groups of {sizes} parameters"


@contextlib.contextmanager
def _shared(what: str) -> Iterator[None]:
    """Let an error of one rank be one on every rank, which would wait or go on without it.

    Collective: every rank, with the same ``what``.
    Blocks: until all ranks have left the context.

    Raises:
        ValueError: Another error than a `CollectiveError`, which all ranks have anyway, on a rank.
    """
    error = None
    try:
        yield
    except CollectiveError:
        raise
    except Exception as caught:  # whatever a class of an optimizer or of its state raises
        error = caught
    said = error and (str(error) if type(error) is ValueError else repr(error))
    for rank, text in enumerate(allgather_object(said, name=f"optimizer_state.{what}")):
        if text is not None:
            raise ValueError(f"state of an optimizer on rank {rank}: {text}") from error


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
    """`load_state_dict` that keeps the dictionaries of ``optimizer`` and what was received.

    Loading casts tensors to the parameter's dtype, and makes anything that has elements anew of
    a generator of them, which texts, ranges, arrays and named tuples do not survive. So it gets
    tensors and plain values.
    """
    state = received.get("state", {})  # a class may have its own form
    numbers = [number for group in received["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {number: state[number] for number in numbers if isinstance(state.get(number), dict)}
    shown = {
        number: {name: value for name, value in entries.items() if _survives(value)}
        for number, entries in own.items()
    }
    if own:
        received = {**received, "state": {**state, **shown}}
    with kept_shared(optimizer):
        optimizer.load_state_dict(received)
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in own:
            loaded = optimizer.state[parameter]
            entries = {  # in the order of the root
                name: loaded.pop(name, value) if _is_plain(value) else value
                for name, value in own[number].items()
            }
            rest = {name: value for name, value in loaded.items() if name not in entries}
            loaded.clear()
            loaded.update(entries | rest)


def _survives(value: Any) -> bool:
    """Whether torch's `load_state_dict` takes ``value``, if perhaps in another dtype."""
    return isinstance(value, torch.Tensor) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Iterable)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` with a `_Tensor` in the place of every tensor, which is appended to ``tensors``."""

    def take(entry: Any) -> Any:
        if not isinstance(entry, torch.Tensor):
            return entry
        tensors.append(entry)
        return _Tensor(tuple(entry.shape), entry.dtype, device_of(entry) < 0)

    return _mapped(value, take)


def _put_tensors(value: Any, tensors: list[torch.Tensor], parameter: torch.Tensor) -> Any:
    """The inverse of `_take_tensors` with new tensors, in the same order.

    What is on a device of the root comes to the device of ``parameter`` here.
    """

    def put(entry: Any) -> Any:
        if not isinstance(entry, _Tensor):
            return entry
        tensors.append(
            torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
            if entry.on_host
            else parameter.new_empty(entry.shape, dtype=entry.dtype, requires_grad=False)
        )
        return tensors[-1]

    return _mapped(value, put)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with changed entries, at any depth, in containers of the same classes."""
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, entry in value.items():
            made[key] = _mapped(entry, change)
        return made
    if isinstance(value, deque):
        return deque([_mapped(entry, change) for entry in value], value.maxlen)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # named
        return value._make([_mapped(entry, change) for entry in value])
    if type(value) in (list, tuple):
        return type(value)([_mapped(entry, change) for entry in value])
    return change(value)
