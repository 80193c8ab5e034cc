"""Which tensors the core takes, where they live, and what to tell the owner of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from aiacc import _core
from aiacc.collectives import dtypes
from aiacc.collectives.handles import synchronize
from aiacc.collectives.memory import lacks_memory
from aiacc.torch import streams

#: Numbers of the core's data types.
DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in dtypes.DTYPE_CODES.items()
}

#: What elements of other dtypes travel as; see `dtypes.carrier_of`.
Carriers: TypeAlias = Mapping[torch.dtype, tuple[int, tuple[int, ...]]]


def _moved() -> Carriers:
    carriers = {}
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        # What quantised numbers mean is not in their bytes.
        if dtype not in DTYPE_CODES and not name.startswith("q"):
            carriers[dtype] = dtypes.carrier_of(name, dtype.itemsize)
    return carriers


#: For operations that only move elements.
MOVED: Carriers = _moved()
#: For sums: those of complex numbers are sums of their parts.
SUMMED: Carriers = {dtype: carrier for dtype, carrier in MOVED.items() if dtype.is_complex}
#: For other reductions.
REDUCED: Carriers = {}

_increment_version = torch.autograd.graph.increment_version
LOWEST_ADDRESS = _core.LOWEST_ADDRESS
#: What a tensor that has such an attribute keeps elsewhere, and how to get at that.
_WRAPPERS = {
    "full_tensor": "use tensor.to_local() for this rank's part, or tensor.full_tensor()",
    "get_mask": "use tensor.get_data() and tensor.get_mask()",
    "trigger_wait": "use tensor.wait()",
    "fake_mode": "use a real tensor, for this one only stands for it while torch traces",
}


def let_core_read() -> None:
    """Let the core read tensors in host memory, which takes it a third of the time.

    It reads those that torch offers a way for. Others are described to it by their attributes.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    types = torch.Tensor, torch.nn.Parameter
    predicates = torch.Tensor.is_neg, _bytes_have_other_values, lacks_memory
    _core.read_tensors_of(types, exchange, *predicates)


def _bytes_have_other_values(tensor: torch.Tensor) -> bool:
    """Whether the values of ``tensor`` are not those that DLPack says are in its bytes.

    Of integers of fewer than 8 bits, two of int4 perhaps, it says that they have 8.
    """
    return tensor.is_neg() or tensor.dtype not in DTYPE_CODES


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


def refusal(tensor: object, what: str, carriers: Carriers = REDUCED) -> Exception:
    """Why the core does not take ``tensor``, as an exception to raise.

    Args:
        tensor: What was given.
        what: What it was given for, such as ``"allreduce of 'fc.weight'"``.
        carriers: Of the operation, besides `DTYPE_CODES`.
    """
    if not isinstance(tensor, torch.Tensor):
        return TypeError(
            f"[torch] {what}: {type(tensor).__name__} (expected torch.Tensor); "
            "convert it with torch.as_tensor"
        )
    return ValueError(f"[torch] {what}: {_problem(tensor, carriers)}")


def _problem(tensor: torch.Tensor, carriers: Carriers) -> str:
    if is_lazy(tensor):
        return (
            f"{type(tensor).__name__} of a lazy module, which has no shape yet (expected one with "
            "values); call the module once, on every rank, before"
        )
    kind, dtype = type(tensor), tensor.dtype
    if tensor.is_nested:
        return f"nested {kind.__name__} (expected a dense tensor); use those of tensor.unbind()"
    if tensor.layout is not torch.strided:
        return (
            f"tensor of layout {tensor.layout} (expected torch.strided); "
            "use tensor.to_dense(), or DistributedOptimizer(..., sparse_as_dense=True)"
        )
    if tensor.is_meta and kind in _PLAIN:
        return (
            "tensor on device meta, which has no values (expected cpu or cuda); give it some with "
            "module.to_empty(device=...) or torch.empty_like(tensor, device=...)"
        )
    if lacks_memory(tensor):
        remedy = "use tensor.clone() before it is freed, and call this outside of torch.func"
        if kind not in _PLAIN:
            found = (text for name, text in _WRAPPERS.items() if hasattr(tensor, name))
            remedy = next(found, "use the tensors that it wraps")
        return (
            f"{kind.__name__} of shape {tuple(tensor.shape)} that has no memory of its own "
            f"(expected one that wraps no others, and whose storage was not freed); {remedy}"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        return f"tensor on device {tensor.device} (expected cpu or cuda); use tensor.cpu()"
    if tensor.is_quantized:
        return (
            f"quantised tensor of dtype {dtype} (expected one whose bytes are its values); use "
            "tensor.int_repr(), or tensor.dequantize()"
        )
    if dtype not in DTYPE_CODES and dtype not in carriers:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        remedy = "convert it with tensor.to(...)"
        if dtype.is_complex:
            remedy = "use torch.view_as_real(tensor), and torch.view_as_complex for the result"
        elif dtype.is_floating_point:
            remedy = "use tensor.float(), which loses nothing"
        return f"tensor of dtype {dtype} (expected one of {names}); {remedy}"
    if not tensor.is_contiguous():
        return (
            f"tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} "
            "(expected contiguous memory); use tensor.contiguous()"
        )
    change, remedy = "negated", "resolve_neg"
    if tensor.is_conj():
        change, remedy = "conjugate", "resolve_conj"
    return (
        f"a lazy view, whose memory has the {change} values "
        f"(expected one whose memory has its own values); use tensor.{remedy}()"
    )


#: Classes whose tensors wrap no others.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def device_of(tensor: torch.Tensor) -> int:
    """Ordinal of the CUDA device that ``tensor`` is on, or -1 for one in host memory."""
    return -1 if tensor.is_cpu else tensor.get_device()


def device_and_stream_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Device, and the stream that ``tensor`` comes from."""
    device = device_of(tensor)
    return (device, streams.current_stream(device)) if device >= 0 else (-1, 0)


def view_of(tensor: torch.Tensor, what: str, carriers: Carriers = REDUCED) -> View:
    """What the core has to know of a tensor.

    Args:
        tensor: What was given.
        what: What it was given for, for errors.
        carriers: `MOVED` or `SUMMED`, of an operation that takes those dtypes as well.

    Raises:
        ValueError: The core does not take it; the text says why and what to do.
        TypeError: It is no tensor.
    """
    try:
        on_device = tensor.is_cpu or tensor.is_cuda
        if on_device and tensor.is_contiguous() and not tensor.is_neg():
            address, dtype = tensor.data_ptr(), tensor.dtype
            if address >= LOWEST_ADDRESS or not lacks_memory(tensor):
                code = DTYPE_CODES.get(dtype)
                if code is not None:
                    return View(address, tensor.shape, code, *device_and_stream_of(tensor))
                code, behind = carriers[dtype]
                if not tensor.is_conj():
                    shape = (*tensor.shape, *behind)
                    return View(address, shape, code, *device_and_stream_of(tensor))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        pass
    raise refusal(tensor, what, carriers)


def address_of(tensor: torch.Tensor, what: str) -> int:
    """Where the memory of a strided tensor begins, which must have some unless it is empty.

    Raises:
        ValueError: It has none; the text says why and what to do.
        TypeError: It is no tensor.
    """
    try:
        address = tensor.data_ptr()
        if address >= LOWEST_ADDRESS or not lacks_memory(tensor):
            return address
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    raise refusal(tensor, what, MOVED)


def check_moved(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError unless what `plain` gives for ``tensor`` can be moved. Reads no values."""
    address_of(tensor, what)
    on_device = tensor.is_cpu or tensor.is_cuda
    known = tensor.dtype in DTYPE_CODES or tensor.dtype in MOVED
    if not (on_device and known) or tensor.is_nested:
        raise refusal(tensor, what, MOVED)


def contiguous(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """``tensor``, or a copy if its memory does not hold its values one after another.

    Raises:
        ValueError: It has no memory.
        TypeError: It is no tensor.
    """
    address_of(tensor, what)
    return tensor.resolve_conj().resolve_neg().contiguous()


def check_overwritten(tensor: torch.Tensor, what: str) -> None:
    """`check_moved`, and raise ValueError if elements share memory, as in `expand`."""
    check_moved(tensor, what)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() > 0 and any(extent > 1 and step == 0 for extent, step in steps):
        raise ValueError(
            f"[torch] {what}: tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} "
            "(expected memory for each element, to be written); use tensor.contiguous()"
        )


def count_write(tensor: torch.Tensor) -> None:
    """Let autograd know that ``tensor`` is written to, as it knows of functions of torch.

    A backward pass that needs what was there is then refused, and so is a step with a gradient that
    had left.
    """
    try:  # noqa: SIM105 - costs a tenth of `suppress`
        _increment_version(tensor)
    except RuntimeError:  # of inference mode, so that it has no version; only older torch minds
        pass


def plain(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """`contiguous` outside of the graph, for what autograd does not see."""
    return contiguous(tensor, what).detach()


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
            _from_bytes(data, _shape_of(shape, like), like.dtype)
            for (data, shape), like in zip(_core.take_outputs(handle), likes, strict=True)
        ]
    return _taken(handle, likes)[0]


def take_alltoall(handle: int, like: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """What a finished all-to-all produced, and the rows received from every rank."""
    if like.is_cpu:
        data, shape, received = _core.take_alltoall(handle)
        return _from_bytes(data, _shape_of(shape, like), like.dtype), received
    (output,), received = _taken(handle, [like])
    return output, received


def _taken(handle: int, likes: list[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The core's output in memory of torch's allocator, which only now is known to be how large."""
    shapes = _core.output_shapes(handle)
    outputs = [
        like.new_empty(_shape_of(shape, like), requires_grad=False)
        for like, shape in zip(likes, shapes, strict=True)
    ]
    addresses = tuple(output.data_ptr() for output in outputs)
    received = _core.take_into(handle, addresses, streams.current_stream(device_of(likes[0])))
    return outputs, received


def _shape_of(shape: tuple[int, ...], like: torch.Tensor) -> tuple[int, ...]:
    """Of what the core has produced in this shape, as elements of the dtype of ``like``."""
    _, behind = MOVED.get(like.dtype, (0, ()))
    return shape[: len(shape) - len(behind)]


def _from_bytes(data: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory that the core has given away."""
    if data.size == 0:  # no view of nothing
        return torch.empty(shape, dtype=dtype, device="cpu")
    # No view, for autograd forbids writes to one that an operation gives.
    return torch.from_numpy(data).view(dtype).reshape(shape).data


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError for a tensor that has no first dimension."""
    if tensor.dim() == 0:
        raise ValueError(
            f"[torch] {what}: tensor without dimensions (expected at least one, the first of which "
            "is divided among the ranks); use tensor.reshape(1)"
        )
