"""What a rank does with tensors on its GPU, against the same numbers on the CPU."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import numpy as np
import pytest
import torch

import aiacc
import aiacc.torch as hvd
from tests.parallel.torch.test_ops import from_torch, to_torch
from tests.support import footprint, operations
from tests.support.jobs import until_it_fails
from tests.support.operations import Case


def begin() -> tuple[int, int]:
    """Join the job, on GPU 0; rank and size."""
    torch.cuda.set_device(0)
    hvd.init()
    return hvd.rank(), hvd.size()


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the last bit, and on the GPU."""
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def _to_gpu(array: np.ndarray) -> torch.Tensor:
    return to_torch(array).cuda()


def _from_gpu(tensor: torch.Tensor) -> np.ndarray:
    assert tensor.is_cuda or tensor.dtype == torch.int32  # splits are on the CPU
    return from_torch(tensor)


FRONT = operations.Frontend(hvd, _to_gpu, _from_gpu)


def every_operation() -> None:
    """The table of all front-ends, large tensors, and a sparse one."""
    rank, size = begin()
    cases = itertools.chain(
        operations.table(rank, size, shapes=operations.FEW_SHAPES),
        operations.reductions(rank, size, operations.DTYPES, [(300, 300)]),
        operations.reductions(rank, size, [np.dtype(np.float32)], [(3, 1 << 20)]),
    )
    for number, case in enumerate(cases):
        if _engine_takes(case):
            operations.check(FRONT, case, number)
        else:
            with pytest.raises(NotImplementedError, match="dtype"):
                operations.call(FRONT, case, operations.given(FRONT, case))
    sparse = torch.eye(4, device="cuda").to_sparse()
    total = hvd.sparse_allreduce_async(sparse, "eye", hvd.Sum)()
    assert total.to_dense().eq(size * torch.eye(4, device="cuda")).all()
    hvd.shutdown()


def _engine_takes(case: Case) -> bool:
    """NCCL has no reductions of integers of 16 bits."""
    short = getattr(case.given, "dtype", None) in (np.int16, np.uint16)
    return not (short and "reduce" in case.verb and aiacc._core.gpu_engine() == "nccl")


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
        _every_form(compression, seed)
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


def _every_form(compression: Any, seed: int) -> None:
    """On numbers that every format has, as have the sums of up to four ranks."""
    rank, size = hvd.rank(), hvd.size()
    options = {"compression": compression}
    ones, whole = np.ones(33, np.float32), np.arange(9)
    factors = {"prescale_factor": 0.5, "postscale_factor": 8.0}
    cases = [
        Case("allreduce", ones, ones, options=options),
        Case("allreduce", ones, ones * 4 * size, "Sum", options | factors),
        Case("allreduce", whole, whole * size, "Sum", options),
    ]
    for shape in ((), (5,), (1000, 300)):
        inputs = [np.minimum(one, 2) for one in operations.everyones(size, shape, seed=seed)]
        mine, total = inputs[rank], operations.reduced("Sum", inputs)
        cases.append(Case("allreduce", mine, total, "Sum", options))
        cases.append(Case("grouped_allreduce", [mine] * 2, [total] * 2, "Sum", options))
    for case in cases:
        operations.check(FRONT, case)
    leaf = torch.ones(33, device="cuda", requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, compression=compression).sum().backward()
    assert leaf.grad is not None
    same(leaf.grad, torch.full((33,), float(size), device="cpu"))


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


def steps_without_synchronisation(*compressions: Any) -> None:
    """torch itself raises where the host would wait for the GPU, from the fourth step on."""
    begin()
    batch = torch.randn(16, 64, device="cuda")
    for compression in compressions or (hvd.Compression.none,):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).cuda()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.05),
            model.named_parameters(),
            compression=compression,
        )
        for step in range(6):
            if step == 3:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
    hvd.shutdown()


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
