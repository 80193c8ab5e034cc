"""Which tensors the core takes, and what to tell the owner of another one."""

from __future__ import annotations

import torch

#: Numbers of the core's data types (csrc/base/dtype.h).
DTYPE_CODES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.uint16: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
    torch.bfloat16: 10,
}


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
    if tensor.device.type != "cpu":
        return ValueError(
            f"[torch] {what}: tensor on device {tensor.device} (expected cpu, the only device of "
            "this version's engines); use tensor.cpu()"
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
    return ValueError(f"[torch] {what}: tensor {tensor!r} has no memory that can be sent")


def address_and_code(tensor: torch.Tensor, what: str) -> tuple[int, int]:
    """Address and dtype number of a tensor that the core takes.

    Raises:
        ValueError: The core does not take it; the text says why and what to do.
        TypeError: It is no tensor.
    """
    try:
        if tensor.is_cpu and tensor.is_contiguous():
            return tensor.data_ptr(), DTYPE_CODES[tensor.dtype]
    except (AttributeError, KeyError, RuntimeError):
        pass
    raise refusal(tensor, what)


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError for a tensor that has no first dimension."""
    if tensor.dim() == 0:
        raise ValueError(
            f"[torch] {what}: tensor without dimensions (expected at least one, the first of which "
            "is divided among the ranks); use tensor.reshape(1)"
        )
