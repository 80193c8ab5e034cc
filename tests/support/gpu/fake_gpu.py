"""Ranks without GPU whose tensors pass for tensors on CUDA device 0.

    @pytest.mark.parametrize("size", [2, 3])
    def test_sum(size):
        fake_gpu.run_ranks(size, add_up)

In a rank, torch's tensors stay in host memory, which is also the device memory of the fake driver
(tests/cpp/support/fakes/fake_cuda.h) that the core loads in place of libcuda. Tensors count as on
the device unless they were made with ``device="cpu"``, from NumPy or from bytes, by
`torch.Tensor.cpu`, or from such tensors alone.

What torch computes happens at once, as if its stream had come to it. So whoever makes a stream of
torch's wait here waits for the fake's streams themselves: that is what the stream would do before
the computation that follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from aiacc import _core
from aiacc.kfac import kernels
from aiacc.optim import fused
from aiacc.torch import streams
from aiacc.torch.adapter import DTYPE_CODES
from aiacc.torch.ops import allreduce as allreduce_ops
from tests.support import ranks
from tests.support.programs import missing

#: Numbers of floating-point dtypes.
_FLOATS = {code for dtype, code in DTYPE_CODES.items() if dtype.is_floating_point}
_SINGLE = DTYPE_CODES[torch.float32]
LIBRARY = ranks.ROOT / "build/dev/tests/cpp/fake_driver/libcuda.so.1"


#: Handles of operations that a stream of this rank has waited for.
waits: list[int] = []


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    env: dict[str, str] | None = None,
    **rest: Any,
) -> list[Any]:
    """`ranks.run_ranks` on fake GPUs; the results of the ranks."""
    if not LIBRARY.exists():
        missing(f"{LIBRARY.relative_to(ranks.ROOT)} is not built; run make test-cpp")
    changes = {"LD_LIBRARY_PATH": str(LIBRARY.parent), **(env or {})}
    return ranks.run_ranks(size, on_fake_gpu, function, *args, env=changes, **rest)


def driver() -> ctypes.CDLL:
    """The fake, of this process."""
    fake = ctypes.CDLL(str(LIBRARY))
    for function in (fake.fake_copied_by_pinned, fake.fake_copied_by_registered):
        function.restype = ctypes.c_ulonglong
    return fake


def on_fake_gpu(function: Callable[..., Any], *args: Any) -> Any:
    """Run ``function(*args)`` with tensors that pass for ones on device 0. For a rank process."""
    fake = driver()
    _order_by_waiting(fake)
    _core.read_tensors_of((), None, None, None, None)  # it would see where tensors really are
    _pretend_placement()
    _pretend_streams(fake)
    _pretend_steps(fake)
    with _MarksHost():
        result = function(*args)
    assert fake.fake_misuses() == 0
    return result


#: By the core's number: csrc/kernels/batch_copy.h.
_WIRE_DTYPES = {
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.float8_e4m3fn,
    4: torch.float8_e5m2,
}


def pretend_wire_formats() -> list[int]:
    """Let the staged job of this rank pass for one of engine nccl as far as compression goes.

    Inputs are rounded as they would be when they are packed, and then added up in float32.

    Returns:
        The wire formats of all all-reduces of floats that are submitted from now on.
    """
    wires: list[int] = []
    real = _core.prepare

    def prepare(*arguments: Any) -> Any:
        kind, verb, name, shape, dtype, process_set, device, *rest = arguments
        op, prescale, postscale, wire, *_ = (*rest, *(1, 1.0, 1.0, 0)[len(rest) :])
        codes = dtype if isinstance(dtype, tuple) else (dtype,)
        if kind != _core.ALLREDUCE:
            return real(*arguments)
        wires.extend(wire for code in codes if code in _FLOATS)
        if not wire or set(codes) != {_SINGLE}:
            return real(*arguments)  # which refuses a wire format for what is not float32
        plain = real(kind, verb, name, shape, dtype, process_set, device, op, 1.0, postscale)

        def start(inputs: Any, outputs: Any, stream: int = 0) -> int:
            """Round the inputs, and let the core reduce them as they are then."""
            several = isinstance(inputs, tuple)
            given = (inputs, outputs, shape) if several else ((inputs,), (outputs,), (shape,))
            for address, output, one in zip(*given, strict=True):
                _narrow(wire, address, output, one, prescale)
            return int(plain.start(outputs, outputs, stream))

        # Nothing starts in place with tensors that are on a GPU, as these seem to be.
        return SimpleNamespace(start=start, start_in_place=lambda *tensors: None)

    pretended: Any = _core
    pretended.gpu_engine = lambda: "nccl"
    pretended.prepare = allreduce_ops._prepare = prepare
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # type: ignore[assignment]
    return wires


def _narrow(wire: int, address: int, output: int, shape: tuple[int, ...], prescale: float) -> None:
    count = math.prod(shape)
    if count > 0:
        floats = ctypes.c_float * count
        given = torch.frombuffer(floats.from_address(address), dtype=torch.float32)
        rounded = (given * prescale).to(_WIRE_DTYPES[wire]).float()
        torch.frombuffer(floats.from_address(output), dtype=torch.float32).copy_(rounded)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor in this process counts as one in host memory."""
    if tensor.layout is not torch.strided:
        tensor = tensor._values()
    return getattr(tensor.untyped_storage(), "on_host", False)


def _order_by_waiting(fake: ctypes.CDLL) -> None:
    real_wait, real_take = _core.wait, _core.take_into

    def wait(handle: int, *stream: int) -> bool:
        coded = real_wait(handle, *stream)
        if stream:
            waits.append(handle)
            fake.fake_drain()
        return coded

    def take_into(*arguments: Any) -> tuple[int, ...]:
        received = real_take(*arguments)
        fake.fake_drain()
        return received

    _core.wait, _core.take_into = wait, take_into


def _pretend_placement() -> None:
    get_device = torch.Tensor.get_device

    def in_memory(tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    tensor_class: Any = torch.Tensor
    tensor_class.is_cpu = property(lambda t: in_memory(t) and is_on_host(t))
    tensor_class.is_cuda = property(lambda t: in_memory(t) and not is_on_host(t))
    tensor_class.get_device = lambda t: 0 if t.is_cuda else get_device(t)
    tensor_class.cuda = lambda t, *_: (
        t if t.is_cuda else torch.empty_like(t, device="cuda").copy_(t)
    )
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]

    # torch.distributed asks for it to choose between ways that do not matter here.
    torch.cuda.get_device_capability = lambda device=None: (8, 0)  # type: ignore[assignment]
    # These are no functions that a mode sees.
    for name in ("from_numpy", "frombuffer"):
        setattr(torch, name, _marking(getattr(torch, name)))


def _marking(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def marked(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        _mark_host(made)
        return made

    return marked


def _mark_host(tensor: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # it has no memory
        tensor.untyped_storage().on_host = True  # type: ignore[attr-defined]


def _pretend_streams(fake: ctypes.CDLL) -> None:
    pretended: Any = streams
    pretended.current_stream = lambda device: 0
    pretended.record_use = lambda tensors, device, stream: None
    pretended.aside = lambda device: contextlib.nullcontext()
    pretended.mark = lambda device: object()
    pretended.wait_for_mark = lambda event, device: None
    pretended.future_on = lambda device: torch.futures.Future()
    torch.cuda.synchronize = lambda device=None: fake.fake_drain()  # type: ignore[assignment]
    torch.cuda.mem_get_info = lambda device=None: (0, 0)


def _pretend_steps(fake: ctypes.CDLL) -> None:
    """What the core queues for optimizers and factors is done when torch goes on."""

    def and_wait(step: Callable[..., None]) -> Callable[..., None]:
        def step_and_wait(*arguments: Any, **options: Any) -> None:
            step(*arguments, **options)
            fake.fake_drain()

        return step_and_wait

    for what in ("lars_step", "lamb_step", "pack_factors", "unpack_factors", "average_factors"):
        name = f"{what}_on_gpu"
        setattr(_core, name, and_wait(getattr(_core, name)))
    fused.current_stream = kernels.current_stream = lambda device: 0


class _MarksHost(TorchFunctionMode):
    """Remembers which memory counts as the host's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        device = str(options.get("device"))
        if device == "cuda":
            del options["device"]
        result = func(*args, **options)
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            return result
        if func is torch.Tensor.cpu and not is_on_host(args[0]):
            result = result.clone()
        given = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        from_host = bool(given) and all(map(is_on_host, given)) and device != "cuda"
        if func is torch.Tensor.cpu or device == "cpu" or from_host:
            _mark_host(result)
        return result
