"""Steps that the core makes, of float32 in host memory and on GPUs: what it takes, and how.

On a GPU its kernels are queued on the current stream, and nothing comes back to the host.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from aiacc import _core


def problem(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    *,
    on_cpu: bool = True,
) -> str:
    """Why the core cannot make a step of tensors on one device; "" if it can.

    Loads the kernels of a GPU when it is first asked about it. ``on_cpu``: it has the step for host
    memory, too.
    """
    if group["differentiable"]:
        return "differentiable=True (expected False)"
    device, lr = params[0].device, group["lr"]
    if params[0].is_cuda:
        lacking = _problem_of_gpu(params[0].get_device())
        if lacking:
            return f"parameters on {device}: {lacking}"
    for parameter, grad in zip(params, grads, strict=True):
        text = _problem_of_tensor(parameter, grad, on_cpu)
        if text:
            return text
    if isinstance(lr, torch.Tensor) and not (params[0].is_cuda and _is_near(lr, params[0])):
        return f"a tensor on {lr.device} as lr and parameters on {device} (expected a number)"
    return ""


@functools.cache
def _problem_of_gpu(device: int) -> str:
    return _core.optim_problem(device)


def _is_near(lr: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a step may read ``lr`` without waiting for another GPU."""
    return lr.is_cpu or (lr.is_cuda and lr.get_device() == parameter.get_device())


def _problem_of_tensor(parameter: torch.Tensor, grad: torch.Tensor, on_cpu: bool) -> str:
    for tensor in (parameter, grad):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"a {type(tensor).__name__} (expected torch.Tensor)"
    on_known = parameter.is_cuda or (on_cpu and parameter.is_cpu)
    if not (on_known and parameter.dtype == grad.dtype == torch.float32):
        where = "cpu or cuda" if on_cpu else "cuda"
        return f"{parameter.dtype} on {parameter.device} (expected torch.float32 on {where})"
    dense = parameter.is_contiguous() or (
        parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    )
    if parameter.shape != grad.shape:
        return f"a gradient of shape {tuple(grad.shape)} (expected {tuple(parameter.shape)})"
    if not dense or parameter.stride() != grad.stride():
        return (
            f"strides {parameter.stride()} and a gradient's {grad.stride()} (expected equal "
            "ones without gaps)"
        )
    return ""


def buffer_as(parameter: torch.Tensor, state: dict[str, Any], name: str) -> torch.Tensor:
    """``state[name]`` in memory like the parameter's; undefined numbers if there was none.

    Raises:
        ValueError: It has another shape.
    """
    buf: torch.Tensor | None = state.get(name)
    if buf is None:
        return torch.empty_like(parameter)
    if buf.shape != parameter.shape:
        raise ValueError(
            f"a {name} of shape {tuple(buf.shape)} (expected the parameter's, "
            f"{tuple(parameter.shape)}); delete the parameter's state if its shape has changed"
        )
    alike = _layout(buf) == _layout(parameter)
    return buf if alike else torch.empty_like(parameter).copy_(buf)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.stride()


def rate(lr: float | torch.Tensor) -> tuple[float, torch.Tensor | None]:
    """The learning rate as a number, or as a float32 on the GPU that the host does not look at."""
    if isinstance(lr, torch.Tensor) and lr.is_cuda:
        return 0.0, lr.detach().to(torch.float32).reshape(())
    return float(lr), None


def workspace(parameter: torch.Tensor, tensors: int) -> torch.Tensor:
    """Memory for a step of so many tensors on the GPU of ``parameter``.

    It is torch's, of the current stream, so that it may be given up once the step is queued there.
    """
    size = _core.optim_workspace_bytes(tensors)
    return torch.empty(size, dtype=torch.uint8, device=parameter.device)


def current_stream(device: int) -> int:
    """The stream on which this thread uses a CUDA device now, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream
