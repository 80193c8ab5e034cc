"""All-reduce of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from aiacc import _core, arguments
from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.collectives.memory import lacks_memory
from aiacc.collectives.reduce_ops import check_gradient_op, resolve_op
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.torch.adapter import (
    DTYPE_CODES,
    LOWEST_ADDRESS,
    count_write,
    device_and_stream_of,
    refusal,
    tensor_of,
    view_of,
    wait,
)
from aiacc.torch.compression.compressors import Compression, Compressor, compressor_of
from aiacc.torch.compression.encode import to_send
from aiacc.torch.compression.wire_format import wire_of
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.tensor_list import gradients_of

# Bound here because a look-up in a module costs as much as a tenth of a submission.
_prepare = _core.prepare
_in_place = _core.allreduce_in_place
_ALLREDUCE = _core.ALLREDUCE
_NONE = Compression.none


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = _NONE,
) -> int:
    """Start reducing ``tensor`` over all ranks in place.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: never. Leave ``tensor``, and what shares its memory, alone until `synchronize` returns:
    weights that are tied are one tensor, to be given once.

    Args:
        tensor: Contiguous tensor of any shape on the CPU or a CUDA device, of a dtype in
            `dtypes.DTYPE_CODES`. The result comes after what the current stream has queued.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
            Sums of integers, which Average divides, wrap around in their dtype.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        process_set: Ranks that take part.
        compression: Form in which the tensor travels.

    Returns:
        Handle for `poll` and `synchronize`.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    if op is None or average is not None or type(op) is not int:
        op = resolve_op(average, op)
    if compression is not _NONE:
        return _start_compressed(
            tensor, compression, name, op, prescale_factor, postscale_factor, process_set
        )
    if name is not None and type(name) is not str:  # the core takes 0 for no name
        arguments.check({"name": name})
    number = 0 if process_set is global_process_set else set_id(process_set)
    try:
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
            arguments.check(factors)
        handle = _in_place(tensor, name, number, op, prescale_factor, postscale_factor)
        if handle is None:  # on a GPU, or of an older torch, or refused
            handle = _start_in_place(tensor, name, number, op, prescale_factor, postscale_factor)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        given = {"name": name, "op": op, "prescale_factor": prescale_factor}
        given["postscale_factor"] = postscale_factor
        raise arguments.explained(error, given) from None
    count_write(tensor)
    pending[handle] = (wait, (tensor,), tensor, None)
    return handle


def _start_in_place(
    tensor: torch.Tensor,
    name: str | None,
    process_set: int,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
) -> int:
    """Submit ``tensor`` as its attributes describe it."""
    # Written out: `view_of` and `submission` cost 2.5 us more.
    try:
        code, shape = DTYPE_CODES[tensor.dtype], tensor.shape
        on_host = tensor.is_cpu
        if not ((on_host or tensor.is_cuda) and tensor.is_contiguous()) or tensor.is_neg():
            raise refusal(tensor, label_of("allreduce", name))
        address = tensor.data_ptr()
        if address < LOWEST_ADDRESS and lacks_memory(tensor):
            raise refusal(tensor, label_of("allreduce", name))
    except (AttributeError, KeyError, RuntimeError, TypeError):
        raise refusal(tensor, label_of("allreduce", name)) from None
    device, stream = (-1, 0) if on_host else device_and_stream_of(tensor)
    prepared = _prepare(
        _ALLREDUCE,
        "allreduce",
        name,
        shape,
        code,
        process_set,
        device,
        op,
        prescale_factor,
        postscale_factor,
    )
    return prepared.start(address, address, stream)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = _NONE,
) -> int:
    """Start reducing ``tensor`` over all ranks into a new tensor, which `synchronize` returns.

    Arguments, errors and duties are those of `allreduce_async_`; ``tensor`` is only read.
    """
    op = resolve_op(average, op)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    if compression is _NONE:
        return _start(tensor, None, *rest, AS_THEY_ARE)
    view_of(tensor, label_of("allreduce", name))
    compression = compressor_of(compression)
    wire = wire_of(compression, [tensor], op)
    if wire is None:
        return _start_compressed(tensor.detach().clone(), compression, *rest)
    return _start(tensor, None, *rest, wire)


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

    Differentiable with op=Average or Sum: the gradient is reduced with the same op and factors. The
    backward pass of another op raises NotImplementedError.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there.

    Args:
        tensor: See `allreduce_async_`.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        compression: Form in which the tensor travels.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
            Sums of integers, which Average divides, wrap around in their dtype.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        process_set: Ranks that take part.

    Returns:
        Tensor of the shape and dtype of ``tensor``.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    if not isinstance(tensor, torch.Tensor):
        raise refusal(tensor, label_of("allreduce", name))
    op = resolve_op(average, op)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor
    compression = compressor_of(compression)
    wire = wire_of(compression, [tensor], op)
    if wire is not None:
        reduced = apply(_Allreduce, tensor, *rest, wire)
        return reduced
    compressed, ctx = compression.compress(tensor)
    reduced = apply(_Allreduce, compressed, *rest, AS_THEY_ARE)
    return compression.decompress(reduced, ctx)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = _NONE,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks in place and return it.

    Arguments and errors are those of `allreduce`. Autograd counts the change
    as a write, but has no gradient of it.
    """
    if average is not None:
        op = resolve_op(average, op)
    return tensor_of(
        allreduce_async_(
            tensor,
            None,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            compression=compression,
        )
    )


def _start(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    wire: int,
) -> int:
    """Submit ``tensor`` to be reduced into ``output``, by default a new one."""
    source = view_of(tensor, label_of("allreduce", name))
    if output is None:
        output = torch.empty_like(tensor, requires_grad=False)
    prepared = submission.allreduce(
        name, *source.spec, op, prescale_factor, postscale_factor, process_set, wire
    )
    handle = prepared.start(source.address, output.data_ptr(), source.stream)
    pending[handle] = (wait, (tensor, output), output, None)
    return handle


def _start_compressed(
    tensor: torch.Tensor,
    compression: type[Compressor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> int:
    """Submit ``tensor`` to be reduced in place, in the form that ``compression`` gives it."""
    view_of(tensor, label_of("allreduce", name))
    (sent,), restore, wire = to_send(compression, [tensor], op)
    handle = _start(sent, sent, name, op, prescale_factor, postscale_factor, process_set, wire)
    count_write(tensor)

    def result(_: int) -> torch.Tensor:
        if restore is not None:
            restore()
        return tensor

    pending[handle] = (wait, (sent,), None, result)
    return handle


class _Allreduce(torch.autograd.Function):
    verb = "allreduce"

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *rest: Any) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (grad_name(name), *rest)
            ctx.name = name
        return tensor_of(_start(tensor, None, name, *rest))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        check_gradient_op(ctx.arguments[1], f"[torch] {label_of('allreduce', ctx.name)}")
        gradient = apply(_Allreduce, *gradients_of(grads), *ctx.arguments)
        return gradient, *(None for _ in ctx.arguments)
