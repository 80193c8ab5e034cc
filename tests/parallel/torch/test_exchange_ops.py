"""All-to-all, reduce-scatter, groups and join of `aiacc.torch`, against torch itself."""

from __future__ import annotations

import functools
import gc
import itertools

import pytest
import torch

import aiacc
import aiacc.torch as hvd
from aiacc.collectives.handles import pending
from aiacc.collectives.splits import scattered_rows
from aiacc.torch.adapter import DTYPE_CODES
from tests.support.ranks import run_ranks

#: torch has next to no arithmetic of its own for these.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
DTYPES = [dtype for dtype in DTYPE_CODES if dtype not in UNSIGNED]
OPS = {
    hvd.Sum: torch.add,
    hvd.Min: torch.minimum,
    hvd.Max: torch.maximum,
    hvd.Product: torch.mul,
}


def _input(rank, shape, dtype=torch.float32, seed=0):
    """Small whole numbers: sums and products of four are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _sum(inputs):
    if inputs[0].dtype == torch.bool:
        return functools.reduce(torch.logical_or, inputs)
    return functools.reduce(torch.add, inputs)


def _equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def _begin():
    torch.set_num_threads(1)
    hvd.init()
    return hvd.rank(), hvd.size()


def _end():
    assert not pending
    hvd.barrier()
    hvd.shutdown()


# --- all-to-all


def _all_to_all():
    rank, size = _begin()
    for seed, (dtype, tail) in enumerate(itertools.product(DTYPES, [(), (3,), (0,)])):
        # Rank r sends s + r rows to rank s; nothing from rank 0 to itself.
        splits = [[s + r for s in range(size)] for r in range(size)]
        inputs = [_input(r, (sum(splits[r]) + 1, *tail), dtype, seed) for r in range(size)]
        parts = [inputs[r].split([*splits[r], 1]) for r in range(size)]
        expected = torch.cat([parts[r][rank] for r in range(size)])
        received_splits = torch.tensor([splits[r][rank] for r in range(size)], dtype=torch.int32)
        for given in (splits[rank], torch.tensor(splits[rank], dtype=torch.int32)):
            output, received = hvd.alltoall(inputs[rank], given, name=f"a{seed}")
            _equal(output, expected)
            _equal(received, received_splits)
        even = [_input(r, (2 * size, *tail), dtype, seed) for r in range(size)]
        expected = torch.cat([even[r][2 * rank : 2 * rank + 2] for r in range(size)])
        _equal(hvd.alltoall(even[rank]), expected)
        handle = hvd.alltoall_async(even[rank], name="even")
        output, received = hvd.synchronize(handle)
        _equal(output, expected)
        _equal(received, torch.full((size,), 2, dtype=torch.int32))
        assert hvd.synchronize(handle) is None
        nothing = torch.empty((0, *tail), dtype=dtype)
        _equal(hvd.alltoall(nothing), nothing)
    # The gradient of each part goes back; what was not sent has none.
    leaf = torch.ones((size * (rank + 1) + 1, 2), requires_grad=True)
    output, received = hvd.alltoall(leaf, [rank + 1] * size, name="g")
    assert output.requires_grad
    assert not received.requires_grad
    (output * (rank + 1)).sum().backward()
    expected = torch.cat([torch.full((rank + 1, 2), s + 1.0) for s in range(size)])
    _equal(leaf.grad, torch.cat([expected, torch.zeros(1, 2)]))
    leaf = torch.ones(size, requires_grad=True)
    (hvd.alltoall(leaf) * (rank + 1)).sum().backward()
    _equal(leaf.grad, torch.arange(1.0, size + 1))
    _refuse_splits(size)
    _end()


def _refuse_splits(size):
    rows = torch.ones(size + 1, 2)
    for splits, text in [
        ([1] * (size + 1), "expected one for each rank"),
        ([-1] + [1] * (size - 1), "whole numbers >= 0"),
        ([0.5] * size, "whole numbers >= 0"),
        ([2] * (size + 1), "expected one for each rank"),
        ([size + 2] + [0] * (size - 1), f"but the tensor has {size + 1} rows"),
        (torch.ones(size, dtype=torch.int64), r"int64.*splits\.to\(torch\.int32\)"),
        (torch.ones(size), r"float32.*splits\.to\(torch\.int32\)"),
    ]:
        with pytest.raises(ValueError, match=rf"alltoall of 'bad'.*{text}"):
            hvd.alltoall(rows, splits, name="bad")
    if size > 1:
        with pytest.raises(ValueError, match=f"expected a multiple of {size}.*give splits"):
            hvd.alltoall(rows)
    with pytest.raises(ValueError, match="without dimensions"):
        hvd.alltoall(torch.tensor(1.0))
    with pytest.raises(ValueError, match="strides"):
        hvd.alltoall(torch.ones(3, 2 * size).T)


# --- reduce-scatter


def _mine(whole, rank, size):
    begin = sum(scattered_rows(whole.shape[0], r, size) for r in range(rank))
    return whole[begin : begin + scattered_rows(whole.shape[0], rank, size)]


def _reduce_scatter():
    rank, size = _begin()
    shapes = [(2 * size,), (2 * size + 1, 3), (1, 2), (0, 2), (size, 0)]
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, shapes)):
        inputs = [_input(r, shape, dtype, seed) for r in range(size)]
        given = inputs[rank].clone()
        expected = _mine(_sum(inputs), rank, size)
        _equal(hvd.reducescatter(given, op=hvd.Sum), expected)
        handle = hvd.reducescatter_async(given, f"r{seed}", hvd.Sum)
        _equal(hvd.synchronize(handle), expected)
        _equal(given, inputs[rank])
    twelve = torch.full((size + 1, 2), 12.0)
    _equal(hvd.reducescatter(twelve), _mine(twelve, rank, size))
    scaled = hvd.reducescatter(twelve, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    _equal(scaled, _mine(twelve * 1.5 * size, rank, size))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        part = hvd.reducescatter(twelve, None, compression, hvd.Sum)
        _equal(part, _mine(twelve * size, rank, size))
    weight = torch.arange(size + 1.0).reshape(-1, 1).expand(-1, 2)
    for op, factor in ((hvd.Sum, size * 6.0), (hvd.Average, 6.0)):
        leaf = torch.ones((size + 1, 2), requires_grad=True)
        part = hvd.reducescatter(leaf, "g", op=op, prescale_factor=2.0, postscale_factor=3.0)
        (part * _mine(weight, rank, size)).sum().backward()
        _equal(leaf.grad, weight * factor)
    for op in (hvd.Min, hvd.Adasum, 17):
        with pytest.raises(hvd.HorovodInternalError, match="expected Average or Sum"):
            hvd.reducescatter(twelve, op=op)
    with pytest.raises(ValueError, match="without dimensions"):
        hvd.reducescatter(torch.tensor(1.0))
    if size > 1:
        with pytest.raises(aiacc.MismatchError, match=r"reducescatter\.odd"):
            hvd.reducescatter(torch.ones(3 + rank), "odd")
    _end()


# --- groups


def _group(rank, seed=0):
    return [
        _input(rank, (), torch.float32, seed),
        _input(rank, (5,), torch.int64, seed + 1),
        _input(rank, (0, 3), torch.float64, seed + 2),
        _input(rank, (2, 3), torch.bfloat16, seed + 3),
        _input(rank, (70_000,), torch.float32, seed + 4),
    ]


def _grouped_allreduce():
    rank, size = _begin()
    for op, combine in OPS.items():
        everyones = [_group(r) for r in range(size)]
        expected = [functools.reduce(combine, tensors) for tensors in zip(*everyones, strict=True)]
        mine = everyones[rank]
        for actual in (
            hvd.grouped_allreduce(mine, op=op),
            hvd.grouped_allreduce(tuple(mine), name="g", op=op),
            hvd.synchronize(hvd.grouped_allreduce_async(mine, name="g", op=op)),
        ):
            for one, other in zip(actual, expected, strict=True):
                _equal(one, other)
        for one, other in zip(mine, _group(rank), strict=True):
            _equal(one, other)
        results = hvd.grouped_allreduce_(mine, name="h", op=op)
        assert all(one is other for one, other in zip(results, mine, strict=True))
        for one, other in zip(mine, expected, strict=True):
            _equal(one, other)
    twelve = [torch.full((2,), 12.0), torch.full((3,), 12.0).double()]
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        for one in hvd.grouped_allreduce(twelve, compression=compression):
            _equal(one, torch.full_like(one, 12.0))
    handles = [hvd.grouped_allreduce_async_([torch.ones(9) * n], name=f"{n}") for n in range(20)]
    gc.collect()
    for number, handle in enumerate(handles):
        _equal(hvd.synchronize(handle), [torch.full((9,), float(number))])
        assert hvd.synchronize(handle) is None
    _grouped_gradients(rank, size)
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_async_, hvd.grouped_allgather):
        with pytest.raises(TypeError, match=r"wrap it in a list"):
            call(torch.ones(2))
        with pytest.raises(ValueError, match="empty list"):
            call([])
        with pytest.raises(ValueError, match=r"tensor 1 of grouped_all.* 'n'.*strides"):
            call([torch.ones(2), torch.ones(2, 3).T], name="n")
    if size > 1:
        with pytest.raises(aiacc.MismatchError, match=r"grouped_allreduce\.odd"):
            hvd.grouped_allreduce([torch.ones(2), torch.ones(2 + rank)], name="odd")
        with pytest.raises(aiacc.MismatchError, match=r"grouped_allreduce\.odd"):
            hvd.grouped_allreduce([torch.ones(2)] * (1 + rank), name="odd")
    _end()


def _grouped_gradients(rank, size):
    ranks = sum(range(1, size + 1))
    leaves = [torch.ones(3, requires_grad=True), torch.ones((), requires_grad=True)]
    reduced = hvd.grouped_allreduce(leaves, op=hvd.Sum, name="d", prescale_factor=2.0)
    ((reduced[0].sum() + 3 * reduced[1]) * (rank + 1)).backward()
    _equal(leaves[0].grad, torch.full((3,), 2.0 * ranks))
    _equal(leaves[1].grad, torch.tensor(6.0 * ranks))
    # One of them is not used, one needs no gradient.
    leaf = torch.ones(2, requires_grad=True)
    first, *_ = hvd.grouped_allreduce([leaf, torch.ones(2), torch.ones(1).long()], op=hvd.Sum)
    first.sum().backward()
    _equal(leaf.grad, torch.full((2,), float(size)))


def _grouped_gather_and_scatter():
    rank, size = _begin()
    ragged = [[_input(r, (r, 2)), _input(r, (2, 3), torch.int8, 1)] for r in range(size)]
    for name in (None, "g", "g"):
        gathered = hvd.grouped_allgather(ragged[rank], name=name)
        for one, parts in zip(gathered, zip(*ragged, strict=True), strict=True):
            _equal(one, torch.cat(parts))
    handle = hvd.grouped_allgather_async([torch.ones((0, 2))])
    _equal(hvd.synchronize(handle)[0], torch.ones((0, 2)))
    leaves = [torch.ones((r, 2), requires_grad=True) for r in (rank, 1)]
    first, second = hvd.grouped_allgather(leaves)
    rows = torch.arange(float(len(first))).reshape(-1, 1)
    ((first * rows).sum() + (second * (rank + 1)).sum()).backward()
    begin = rank * (rank - 1) // 2
    _equal(leaves[0].grad, rows[begin : begin + rank].expand(-1, 2))
    torch.testing.assert_close(leaves[1].grad, torch.full((1, 2), (size + 1) / 2))

    inputs = [[_input(r, (size + 1, 2)), _input(r, (3,), torch.int32, 1)] for r in range(size)]
    expected = [_mine(_sum(list(t)), rank, size) for t in zip(*inputs, strict=True)]
    for actual in (
        hvd.grouped_reducescatter(inputs[rank], op=hvd.Sum),
        hvd.grouped_reducescatter(inputs[rank], "s", hvd.Compression.none, hvd.Sum),
        hvd.synchronize(hvd.grouped_reducescatter_async(inputs[rank], "s", hvd.Sum)),
    ):
        for one, other in zip(actual, expected, strict=True):
            _equal(one, other)
    leaf = torch.ones((size, 2), requires_grad=True)
    hvd.grouped_reducescatter([leaf, torch.ones(1)], op=hvd.Sum)[0].sum().backward()
    _equal(leaf.grad, torch.full((size, 2), float(size)))
    with pytest.raises(hvd.HorovodInternalError, match="expected Average or Sum"):
        hvd.grouped_reducescatter([torch.ones(2)], op=hvd.Max)
    _end()


# --- join


def _join_unevenly():
    rank, size = _begin()
    for generation in range(3):
        for step in range(rank + 1):
            remaining = sum(1 for r in range(size) if r >= step)
            total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"step{step}")
            _equal(total, torch.full((3,), float(remaining)))
            average = hvd.allreduce(torch.full((3,), 1.0 * size))
            _equal(average, torch.full((3,), float(remaining)))
            both = hvd.grouped_allreduce([torch.ones(1), torch.ones(2).long()], op=hvd.Sum)
            _equal(both[1], torch.full((2,), remaining))
        last = hvd.join()
        assert 0 <= last < size
        assert hvd.allgather(torch.tensor([last])).eq(last).all(), generation
    _end()


BODIES = [
    _all_to_all,
    _reduce_scatter,
    _grouped_allreduce,
    _grouped_gather_and_scatter,
    _join_unevenly,
]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.strip("_"))
def test_operation(body, size):
    run_ranks(size, body)
