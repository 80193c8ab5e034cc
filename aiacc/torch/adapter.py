"""Which tensors the core takes, where they live, and what to tell the owner of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from aiacc import _core
from aiacc.collectives import dtypes
from aiacc.collectives.handles import synchronize
from aiacc.torch import streams

#: Numbers of the core's data types.
DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in dtypes.DTYPE_CODES.items()
}


def let_core_read() -> None:
    """Let the core read tensors in host memory, which takes it a third of the time.

    It reads those that torch offers a way for. Others are described to it by their attributes.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    _core.read_tensors_of((torch.Tensor, torch.nn.Parameter), exchange, torch.Tensor.is_neg)


let_core_read()


class View(NamedTuple):
    """A tensor as the core takes it."""

    address: int
    shape: tuple[int, ...]
    code: int
    #: Ordinal of the CUDA device, or -1: host memory.
    device: int
    #: The current one of the device when the view was made.
    stream: int

    @property
    def spec(self) -> tuple[tuple[int, ...], int, int]:
        """What `submission` wants to know of it."""
        return self.shape, self.code, self.device


def refusal(tensor: object, what: str) -> Exception:
    """Why the core does not take ``tensor``, as an exception to raise.

    Args:
        tensor: What was given.
        what: What it was given for, such as ``"allreduce of 'fc.weight'"``.
    """
    if not isinstance(tensor, torch.Tensor):
        return TypeError(
            f"[torch] {what}: {type(tensor).__name__} (expected torch.Tensor); "
            "convert it with torch.as_tensor"
        )
    if tensor.layout is not torch.strided:
        return ValueError(
            f"[torch] {what}: tensor of layout {tensor.layout} (expected torch.strided); "
            "use tensor.to_dense(), or DistributedOptimizer(..., sparse_as_dense=True)"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        return ValueError(
            f"[torch] {what}: tensor on device {tensor.device} (expected cpu or cuda); use "
            "tensor.cpu()"
        )
    if tensor.dtype not in DTYPE_CODES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        return ValueError(
            f"[torch] {what}: tensor of dtype {tensor.dtype} (expected one of {names}); "
            "convert it with tensor.to(...)"
        )
    if not tensor.is_contiguous():
        return ValueError(
            f"[torch] {what}: tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} "
            "(expected contiguous memory); use tensor.contiguous()"
        )
    if tensor.is_neg():
        return ValueError(
            f"[torch] {what}: a view whose memory has the negated values, as of .conj().imag "
            "(expected one that has its own values); use tensor.resolve_neg()"
        )
    return ValueError(f"[torch] {what}: tensor {tensor!r} has no memory that can be sent")


def device_of(tensor: torch.Tensor) -> int:
    """Ordinal of the CUDA device that ``tensor`` is on, or -1 for one in host memory."""
    return -1 if tensor.is_cpu else tensor.get_device()


def device_and_stream_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Device, and the stream that ``tensor`` comes from."""
    device = device_of(tensor)
    return (device, streams.current_stream(device)) if device >= 0 else (-1, 0)


def view_of(tensor: torch.Tensor, what: str) -> View:
    """What the core has to know of a tensor.

    Raises:
        ValueError: The core does not take it; the text says why and what to do.
        TypeError: It is no tensor.
    """
    try:
        on_device = tensor.is_cpu or tensor.is_cuda
        if on_device and tensor.is_contiguous() and not tensor.is_neg():
            code = DTYPE_CODES[tensor.dtype]
            return View(tensor.data_ptr(), tensor.shape, code, *device_and_stream_of(tensor))
    except (AttributeError, KeyError, RuntimeError):
        pass
    raise refusal(tensor, what)


def wait(handle: int, tensors: Sequence[torch.Tensor]) -> bool:
    """Wait for an operation that uses the memory of ``tensors``, which are on one device.

    Blocks: until the operation is done or failed. On a CUDA device, done means queued: whatever the
    caller runs on its current stream from now on comes after it, and the host waits for no GPU.

    Returns:
        Whether what travelled was coded, see `_core.wait`.

    Raises:
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
        ValueError: Unknown handle.
    """
    if not tensors or tensors[0].is_cpu:
        return _core.wait(handle)
    device = device_of(tensors[0])
    stream = streams.current_stream(device)
    coded = _core.wait(handle, stream)
    # Memory that another stream has allocated goes to that one's next tensor as soon as nobody
    # holds it, unless the allocator knows that this stream comes after its use here.
    streams.record_use(tensors, device, stream)
    return coded


def tensor_of(handle: int) -> torch.Tensor:
    """`synchronize` for a handle that is under way and gives one tensor."""
    output: torch.Tensor = synchronize(handle)
    return output


def take_output(handle: int, like: torch.Tensor) -> torch.Tensor:
    """What a finished all-gather produced, as a tensor of the device and dtype of ``like``."""
    return take_outputs(handle, [like])[0]


def take_outputs(handle: int, likes: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a finished all-gather of several tensors produced, on their device."""
    if likes[0].is_cpu:
        return [
            _from_bytes(data, shape, like.dtype)
            for (data, shape), like in zip(_core.take_outputs(handle), likes, strict=True)
        ]
    return _taken(handle, likes)[0]


def take_alltoall(handle: int, like: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """What a finished all-to-all produced, and the rows received from every rank."""
    if like.is_cpu:
        data, shape, received = _core.take_alltoall(handle)
        return _from_bytes(data, shape, like.dtype), received
    (output,), received = _taken(handle, [like])
    return output, received


def _taken(handle: int, likes: list[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The core's output in memory of torch's allocator, which only now is known to be how large."""
    shapes = _core.output_shapes(handle)
    outputs = [
        like.new_empty(shape, requires_grad=False)
        for like, shape in zip(likes, shapes, strict=True)
    ]
    addresses = tuple(output.data_ptr() for output in outputs)
    received = _core.take_into(handle, addresses, streams.current_stream(device_of(likes[0])))
    return outputs, received


def _from_bytes(data: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory that the core has given away."""
    if data.size == 0:  # no view of nothing
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(data).view(dtype).reshape(shape)


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError for a tensor that has no first dimension."""
    if tensor.dim() == 0:
        raise ValueError(
            f"[torch] {what}: tensor without dimensions (expected at least one, the first of which "
            "is divided among the ranks); use tensor.reshape(1)"
        )
