"""Collectives on torch tensors.

The module's name is Horovod's; no MPI is involved.

Every collective has to be called by all ranks with equal names, shapes (except the first dimension
of an all-gather), dtypes and parameters, in any order. Calls without a name are paired by counting
them, so those need the same order everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from aiacc import _core
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.reduce_ops import Average, resolve_op
from aiacc.torch.compression import Compression, Compressor
from aiacc.torch.tensors import DTYPE_CODES, address_and_code, refusal

# Bound here because a look-up in a module costs as much as a tenth of a submission.
_submit = _core.submit
_wait = _core.wait
_ALLREDUCE = _core.ALLREDUCE
_ALLGATHER = _core.ALLGATHER
_BROADCAST = _core.BROADCAST
_BARRIER = _core.BARRIER

#: What the core reads and writes until a handle is synchronised, so that it stays alive: the tensor
#: of an in-place operation, (input, output) of another one, and (input, None) of an all-gather.
_pending: dict[int, torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]] = {}


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensor`` over all ranks in place.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: never. Leave ``tensor`` alone until `synchronize` returns.

    Args:
        tensor: Contiguous CPU tensor of any shape, of a dtype in `tensors.DTYPE_CODES`.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        process_set: Ranks that take part.

    Returns:
        Handle for `poll` and `synchronize`.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    if op is None or average is not None or op == 2:
        op = resolve_op(average, op)
    # Written out, not shared: this is the path of a gradient.
    try:
        code = DTYPE_CODES[tensor.dtype]
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise refusal(tensor, f"allreduce of {name!r}")
        address = tensor.data_ptr()
    except (AttributeError, KeyError, RuntimeError):
        raise refusal(tensor, f"allreduce of {name!r}") from None
    handle = _submit(
        _ALLREDUCE,
        "allreduce." + name if name else "",
        address,
        address,
        tensor.shape,
        code,
        op,
        0,
        prescale_factor,
        postscale_factor,
        0 if process_set is global_process_set else set_id(process_set),
    )
    _pending[handle] = tensor
    return handle


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensor`` over all ranks into a new tensor, which `synchronize` returns.

    Arguments, errors and duties are those of `allreduce_async_`; ``tensor`` is only read.
    """
    op = resolve_op(average, op)
    address, code = address_and_code(tensor, f"allreduce of {name!r}")
    output = torch.empty_like(tensor, requires_grad=False)
    handle = _submit(
        _ALLREDUCE,
        "allreduce." + name if name else "",
        address,
        output.data_ptr(),
        tensor.shape,
        code,
        op,
        0,
        prescale_factor,
        postscale_factor,
        set_id(process_set),
    )
    _pending[handle] = (tensor, output)
    return handle


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks into a new tensor.

    Differentiable: the gradient is reduced with the same op and factors.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there.

    Args:
        tensor: See `allreduce_async_`.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        compression: Form in which the tensor travels.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        process_set: Ranks that take part.

    Returns:
        Tensor of the shape and dtype of ``tensor``.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    op = resolve_op(average, op)
    compressed, ctx = compression.compress(tensor)
    reduced = _apply(
        _Allreduce, compressed, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(reduced, ctx)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks in place and return it.

    Arguments and errors are those of `allreduce`; autograd does not see the change.
    """
    return _result(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start concatenating the tensors of all ranks along the first dimension.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    address, code = address_and_code(tensor, f"allgather of {name!r}")
    if tensor.dim() == 0:
        raise ValueError(
            f"[torch] allgather of {name!r}: tensor without dimensions (expected at least one, "
            "along which to concatenate); use tensor.reshape(1)"
        )
    handle = _submit(
        _ALLGATHER,
        "allgather." + name if name else "",
        address,
        0,
        tensor.shape,
        code,
        1,
        0,
        1.0,
        1.0,
        set_id(process_set),
    )
    _pending[handle] = (tensor, None)
    return handle


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, in rank order.

    Differentiable: the gradient is averaged over the ranks, each takes the rows that it gave.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there.

    Returns:
        New tensor whose first dimension is the sum of those of all ranks.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return _apply(_Allgather, tensor, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start overwriting ``tensor`` with that of ``root_rank``, a global rank.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: never. Leave ``tensor`` alone until `synchronize` returns.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    address, code = address_and_code(tensor, f"broadcast of {name!r}")
    handle = _submit(
        _BROADCAST,
        "broadcast." + name if name else "",
        address,
        address,
        tensor.shape,
        code,
        1,
        root_rank,
        1.0,
        1.0,
        set_id(process_set),
    )
    _pending[handle] = tensor
    return handle


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying ``tensor`` of ``root_rank`` into a new tensor, which `synchronize` returns.

    Arguments, errors and duties are those of `broadcast_async_`; ``tensor`` is only read.
    """
    address, code = address_and_code(tensor, f"broadcast of {name!r}")
    output = torch.empty_like(tensor, requires_grad=False)
    handle = _submit(
        _BROADCAST,
        "broadcast." + name if name else "",
        address,
        output.data_ptr(),
        tensor.shape,
        code,
        1,
        root_rank,
        1.0,
        1.0,
        set_id(process_set),
    )
    _pending[handle] = (tensor, output)
    return handle


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy ``tensor`` of ``root_rank``, a global rank, into a new tensor on every rank.

    Differentiable: the root's gradient is the average over the ranks, the others' is zero.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: until the result is there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return _apply(_Broadcast, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite ``tensor`` with that of ``root_rank`` and return it.

    Arguments and errors are those of `broadcast`; autograd does not see the change.
    """
    return _result(broadcast_async_(tensor, root_rank, name, process_set))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait for all ranks.

    Collective: every rank.
    Blocks: until every rank has called it.

    Raises:
        CollectiveError: Not initialised, or a rank was lost.
    """
    _wait(_submit(_BARRIER, "", 0, 0, (), 0, 1, 0, 1.0, 1.0, set_id(process_set)))


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Never blocks.

    Raises:
        ValueError: The handle was synchronised before, or never existed.
    """
    return _core.poll(handle)


def synchronize(handle: int) -> torch.Tensor | None:
    """Wait for an operation and return its result.

    Blocks: until the operation is done or failed.

    Returns:
        The output tensor (the tensor itself for an in-place operation); None for a handle that was
        synchronised before or never existed, as in Horovod.

    Raises:
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    entry = _pending.get(handle)
    if entry is None:
        return None
    try:
        _wait(handle)
    except (CollectiveError, ValueError):  # else an interrupt: the core still uses the memory
        _pending.pop(handle, None)
        raise
    del _pending[handle]
    if not isinstance(entry, tuple):
        return entry
    source, output = entry
    return _gathered(handle, source) if output is None else output


def _result(handle: int) -> torch.Tensor:
    output = synchronize(handle)
    assert output is not None
    return output


def _gathered(handle: int, source: torch.Tensor) -> torch.Tensor:
    data, shape = _core.take_output(handle)
    if data.size == 0:  # no view of nothing
        return torch.empty(shape, dtype=source.dtype)
    return torch.from_numpy(data).view(source.dtype).reshape(shape)


def _apply(function: Any, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = function.apply(tensor, *args)
    else:
        result = function.forward(None, tensor, *args)
    return result


def _grad_name(name: str | None) -> str | None:
    return name and name + ".grad"


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (_grad_name(name), op, prescale_factor, postscale_factor, process_set)
        return _result(
            allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, op, prescale_factor, postscale_factor, process_set = ctx.arguments
        gradient = _result(
            allreduce_async(
                grads[0].contiguous(),
                None,
                name,
                op,
                prescale_factor,
                postscale_factor,
                process_set,
            )
        )
        return gradient, None, None, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (_grad_name(name), tensor.shape[0], process_set)
        return _result(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, rows, process_set = ctx.arguments
        gradient = _result(
            allreduce_async(grads[0].contiguous(), None, name, Average, 1.0, 1.0, process_set)
        )
        rows_of = _result(
            allgather_async(torch.tensor([rows]), name and name + ".rows", process_set)
        )
        begin = int(rows_of[: _core.rank()].sum())
        return gradient.narrow(0, begin, rows), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (root_rank, _grad_name(name), process_set)
        return _result(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        root_rank, name, process_set = ctx.arguments
        gradient = _result(
            allreduce_async(grads[0].contiguous(), None, name, Average, 1.0, 1.0, process_set)
        )
        if _core.rank() != root_rank:
            gradient.zero_()
        return gradient, None, None, None
