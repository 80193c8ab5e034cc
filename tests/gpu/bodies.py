"""What a rank does with tensors on its GPU, against the same numbers on the CPU."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aiacc
import aiacc.torch as hvd
from aiacc.torch.adapter import DTYPE_CODES
from tests.support import footprint
from tests.support.jobs import until_it_fails

#: torch has next to no arithmetic of its own for these.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
DTYPES = [dtype for dtype in DTYPE_CODES if dtype not in UNSIGNED]
#: NCCL has no reductions of these.
NOT_OF_NCCL = (torch.int16, torch.uint16)
OPS = {hvd.Sum: torch.add, hvd.Min: torch.minimum, hvd.Max: torch.maximum, hvd.Product: torch.mul}


def begin() -> tuple[int, int]:
    """Join the job, on GPU 0; rank and size."""
    torch.cuda.set_device(0)
    hvd.init()
    return hvd.rank(), hvd.size()


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers on the CPU: their sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 3, shape, generator=generator, device="cpu").to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the last bit, and on the GPU."""
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def every_operation() -> int:
    """All operations on all dtypes that the engine of this job takes; how many it took."""
    rank, size = begin()
    taken = 0
    for seed, dtype in enumerate(DTYPES):
        if aiacc._core.gpu_engine() == "nccl" and dtype in NOT_OF_NCCL:
            with pytest.raises(NotImplementedError, match="dtype"):
                hvd.allreduce(numbers(rank, (3,), dtype, seed).cuda(), op=hvd.Sum)
        else:
            _reduce(rank, size, dtype, seed)
        _move(rank, size, dtype, seed)
        taken += 1
    _groups(size)
    hvd.shutdown()
    return taken


def _reduce(rank: int, size: int, dtype: torch.dtype, seed: int) -> None:
    for shape in ((), (5,), (1000, 300), (3, 1 << 20) if dtype == torch.float32 else (7, 9)):
        inputs = [numbers(other, shape, dtype, seed) for other in range(size)]
        for op, combine in OPS.items():
            if dtype == torch.bool:
                combine = torch.logical_or if op in (hvd.Sum, hvd.Max) else torch.logical_and
            expected = functools.reduce(combine, inputs)
            mine = inputs[rank].cuda()
            same(hvd.allreduce(mine, op=op), expected)
            same(mine, inputs[rank])
            assert hvd.allreduce_(mine, op=op) is mine
            same(mine, expected)
    if dtype.is_floating_point:
        ones = torch.full((33,), float(size), dtype=dtype, device="cpu")
        same(hvd.allreduce(ones.cuda(), op=hvd.Average), ones)
        scaled = hvd.allreduce(ones.cuda(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        same(scaled, ones * 2 * size)
    rows = [numbers(other, (2 * size + 1, 3), dtype, seed + 50) for other in range(size)]
    if dtype != torch.bool:
        total = functools.reduce(torch.add, rows)
        own = hvd.reducescatter(rows[rank].cuda(), op=hvd.Sum)
        same(own, total.tensor_split(size)[rank])


FORMATS = {
    "fp16": torch.finfo(torch.float16),
    "bf16": torch.finfo(torch.bfloat16),
    "fp8_e4m3": torch.finfo(torch.float8_e4m3fn),
    "fp8_e5m2": torch.finfo(torch.float8_e5m2),
}


def compressed() -> list[str]:
    """All-reduces in every compression that this job and GPU have; which those are."""
    rank, size = begin()
    taken = []
    for seed, (name, form) in enumerate(FORMATS.items()):
        compression = getattr(hvd.Compression, name)
        if name.startswith("fp8"):
            half = torch.ones(3, device="cuda", dtype=torch.float16)
            with pytest.raises(
                (ValueError, NotImplementedError), match=f"wire format .*{name[4:]}"
            ):
                hvd.allreduce(half, name="half", compression=compression)
            problem = _problem_of_float8()
            if problem:
                with pytest.raises(NotImplementedError, match=problem):
                    hvd.allreduce(half.float(), name="refused", compression=compression)
                continue
        _every_form(rank, size, compression, seed)
        _rounded(rank, size, compression, form, seed)
        taken.append(name)
    hvd.shutdown()
    return taken


def _problem_of_float8() -> str:
    if aiacc._core.gpu_engine() == "staged":
        return r"wire format float8.*stages.*engine nccl"
    if torch.cuda.get_device_capability()[0] < 9:
        return r"wire format float8.*compute capability.*bfloat16"
    return ""


def _every_form(rank: int, size: int, compression: Any, seed: int) -> None:
    """On numbers that every format has, as have the sums of up to four ranks."""
    for shape in ((), (5,), (1000, 300)):
        inputs = [numbers(other, shape, torch.float32, seed + 300) for other in range(size)]
        expected = functools.reduce(torch.add, inputs)
        mine = inputs[rank].cuda()
        options = {"op": hvd.Sum, "compression": compression}
        same(hvd.allreduce(mine, **options), expected)
        same(hvd.synchronize(hvd.allreduce_async(mine, **options)), expected)
        for result in (
            *hvd.grouped_allreduce([mine, mine], **options),
            *hvd.synchronize(hvd.grouped_allreduce_async([mine, mine], **options)),
        ):
            same(result, expected)
        same(mine, inputs[rank])
        for reduce in _in_place(options):
            place = mine.clone()
            assert reduce(place) is place
            same(place, expected)
    ones = torch.ones(33, device="cuda")
    same(hvd.allreduce(ones, compression=compression), ones.cpu())
    scaled = hvd.allreduce(ones, None, None, compression, hvd.Sum, 0.5, 8.0)
    same(scaled, torch.full((33,), 4.0 * size, device="cpu"))
    leaf = torch.ones(33, device="cuda", requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, compression=compression).sum().backward()
    assert leaf.grad is not None
    same(leaf.grad, torch.full((33,), float(size), device="cpu"))
    whole = torch.arange(9, device="cuda")
    same(hvd.allreduce(whole, op=hvd.Sum, compression=compression), whole.cpu() * size)


def _in_place(options: dict[str, Any]) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """All forms of an all-reduce that change a tensor and return it."""
    return [
        lambda tensor: hvd.allreduce_(tensor, **options),
        lambda tensor: hvd.synchronize(hvd.allreduce_async_(tensor, **options)),
        lambda tensor: hvd.grouped_allreduce_([tensor], **options)[0],
        lambda tensor: hvd.synchronize(hvd.grouped_allreduce_async_([tensor], **options))[0],
    ]


def _rounded(rank: int, size: int, compression: Any, form: torch.finfo, seed: int) -> None:
    """Inputs and partial sums are rounded, each to the nearest number of the format."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 5000, generator=generator, device="cpu")
    reduced = hvd.allreduce(inputs[rank].cuda(), op=hvd.Sum, compression=compression)
    assert reduced.dtype == torch.float32
    error = (reduced.cpu() - inputs.sum(0)).abs()
    assert (error <= size * form.eps * (inputs.abs().sum(0) + form.tiny)).all()
    if size > 1:  # one rank sends nothing
        assert error.any(), "nothing was rounded"


def compresses_without_memory() -> None:
    """An all-reduce in place that travels in half the bytes takes no memory of torch's."""
    begin()
    tensor = torch.ones(1 << 20, device="cuda")
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        hvd.allreduce_(tensor, name="warm", compression=compression)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        hvd.allreduce_(tensor, name="steady", compression=compression)
        assert torch.cuda.max_memory_allocated() == before
    hvd.shutdown()


def _move(rank: int, size: int, dtype: torch.dtype, seed: int) -> None:
    rows = [numbers(other, (other + 1, 4), dtype, seed + 100) for other in range(size)]
    same(hvd.allgather(rows[rank].cuda()), torch.cat(rows))
    for root in range(size):
        same(
            hvd.broadcast(
                rows[0].cuda() if rank == root else torch.zeros_like(rows[0]).cuda(), root
            ),
            rows[0],
        )
    sent = numbers(rank, (sum(range(size)) + size, 2), dtype, seed + 200).cuda()
    splits = [other + 1 for other in range(size)]
    received, counts = hvd.alltoall(sent, splits)
    assert counts.tolist() == [rank + 1] * size
    begin_row = sum(splits[:rank])
    expected = [
        numbers(other, (sum(range(size)) + size, 2), dtype, seed + 200)[
            begin_row : begin_row + rank + 1
        ]
        for other in range(size)
    ]
    same(received, torch.cat(expected))


def _groups(size: int) -> None:
    tensors = [torch.full((n,), 1.0, device="cuda") for n in (1, 1000, 100000)]
    for reduced in hvd.grouped_allreduce(tensors, op=hvd.Sum):
        assert reduced.eq(size).all()
    sparse = torch.eye(4, device="cuda").to_sparse()
    total = hvd.sparse_allreduce_async(sparse, "eye", hvd.Sum)()
    assert total.to_dense().eq(size * torch.eye(4, device="cuda")).all()


def trained(steps: int, options: dict[str, Any]) -> list[float]:
    """A small network after some steps; equal on all ranks."""
    rank, _ = begin()
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(6):
        layers += [torch.nn.Linear(64, 64), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), 0)
    for step in range(steps):
        wrapped.zero_grad()
        torch.manual_seed(100 * step + rank)
        model(torch.randn(16, 64).cuda()).pow(2).mean().backward()
        wrapped.step()
    everything = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    hvd.shutdown()
    return everything.cpu().tolist()


def steps_without_synchronisation() -> None:
    """torch itself raises where the host would wait for the GPU."""
    begin()
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).cuda()
    step_without_synchronisation(
        model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05))
    )
    hvd.shutdown()


def step_without_synchronisation(model: torch.nn.Module, optimizer: Any) -> None:
    """Six steps on 64 features, of which the last three may not wait."""
    batch = torch.randn(16, 64, device="cuda")
    for step in range(6):
        if step == 3:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    torch.cuda.set_sync_debug_mode("default")


def returns_before_the_gpu_is_done() -> None:
    """`synchronize` returns while the kernel that writes the input has not ended."""
    _, size = begin()
    tensor = torch.ones(1000, device="cuda")
    hvd.allreduce(tensor, name="connects")
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # clock ticks: seconds
    written = torch.cuda.Event()
    tensor.fill_(2)
    written.record()
    handle = hvd.allreduce_async_(tensor, name="late", op=hvd.Sum)
    hvd.synchronize(handle)
    assert not written.query()
    assert tensor.eq(2 * size).all()
    hvd.shutdown()


def refuses_capture() -> None:
    """A collective in a CUDA graph is an error, and the job goes on."""
    _, size = begin()
    tensor = torch.ones(8, device="cuda")
    hvd.allreduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        doubled = tensor * 2
        with pytest.raises(NotImplementedError, match=r"captured.*outside of torch\.cuda\.graph"):
            hvd.allreduce_async_(doubled, name="in a graph")
    graph.replay()
    assert hvd.allreduce(doubled, op=hvd.Sum).eq(2 * size).all()
    hvd.shutdown()


def random_orders(tensors: int, rounds: int) -> None:
    """Every rank submits in an order of its own, from a stream of its own."""
    rank, size = begin()
    shuffle = random.Random(rank)
    sizes = [random.Random(7 * number).choice([1, 100, 5000, 300000]) for number in range(tensors)]
    dtypes = [torch.float32, torch.float16, torch.int32, torch.float64]
    side = torch.cuda.Stream()
    for turn in range(rounds):
        order = list(range(tensors))
        shuffle.shuffle(order)
        handles: dict[int, int] = {}
        for number in order:
            stream = side if shuffle.random() < 0.5 else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                value = torch.full(
                    (sizes[number],), rank + turn, dtype=dtypes[number % 4], device="cuda"
                )
                handles[number] = hvd.allreduce_async_(value, name=f"t{number}", op=hvd.Sum)
        shuffle.shuffle(order)
        expected = sum(range(size)) + size * turn
        for number in order:
            assert hvd.synchronize(handles[number]).eq(expected).all(), (turn, number)
    hvd.shutdown()


def chosen_engine() -> str:
    """Which engine moves tensors on GPUs in this job, and does."""
    _, size = begin()
    assert hvd.allreduce(torch.ones(3).cuda(), op=hvd.Sum).eq(size).all()
    engine = aiacc._core.gpu_engine()
    hvd.shutdown()
    return engine


def gives_nan(raises: bool) -> str:
    """The last rank gives a NaN; the text of the error, if the job asks for one."""
    rank, size = begin()
    same(hvd.allreduce(torch.ones(9).cuda(), op=hvd.Sum, name="good"), torch.ones(9).cpu() * size)
    bias, weight = torch.ones(5).cuda(), torch.ones(1 << 20).cuda()
    if rank == size - 1:
        bias[3] = float("nan")
    if not raises:
        for _ in range(3):
            handle = hvd.allreduce_async(bias, name="layer.bias")
            assert hvd.allreduce(weight, name="layer.weight").eq(1).all()
            assert hvd.synchronize(handle).isnan().tolist() == [False, False, False, True, False]
        hvd.shutdown()
        return ""

    def reduce_until_it_fails() -> None:
        hvd.allreduce(bias, name="layer.bias")
        while True:  # on a GPU it is an error when the GPU has come to it
            hvd.allreduce(weight, name="layer.weight")

    with pytest.raises(aiacc.CollectiveError) as caught:
        reduce_until_it_fails()
    hvd.shutdown()
    return str(caught.value)


def lose_a_rank() -> str:
    """Rank 1 dies between two operations; the others get an error that names it."""
    rank, _ = begin()
    tensor = torch.ones(1 << 20, device="cuda")
    hvd.allreduce(tensor, name="all are there")
    torch.cuda.synchronize()
    if rank == 1:
        hvd.allreduce(tensor, name="step0")  # then the others are past the first one
        os._exit(7)
    steps = itertools.count()
    with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
        until_it_fails(lambda: hvd.allreduce(tensor, name=f"step{next(steps)}"))
    hvd.shutdown()
    return "survived"


def start_again(times: int) -> list[int]:
    """Bytes of GPU memory in use after every `init`, operation and `shutdown`."""
    used = []
    for turn in range(times):
        _, size = begin()
        ones = torch.ones(1000, device="cuda")
        assert hvd.allreduce(ones, name=f"turn{turn}", op=hvd.Sum).eq(size).all()
        torch.cuda.synchronize()
        hvd.shutdown()
        free, total = torch.cuda.mem_get_info(0)
        used.append(total - free)
    return used


def flows() -> int:
    """TCP connections of this process that NCCL has opened for large sums on all lanes."""
    begin()
    before = sum(1 for _ in footprint.tcp_sockets())
    for number in range(16):
        hvd.allreduce(torch.ones(1 << 20, device="cuda"), name=f"large{number}")
    torch.cuda.synchronize()
    opened = sum(1 for _ in footprint.tcp_sockets()) - before
    hvd.barrier()
    hvd.shutdown()
    return opened
