"""aiacc.torch against torch itself: operations, gradients, models and objects."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import torch

import aiacc
import aiacc.torch as hvd
from aiacc.torch.adapter import DTYPE_CODES
from tests.support.ranks import run_ranks

OPS = {
    hvd.Sum: torch.add,
    hvd.Min: torch.minimum,
    hvd.Max: torch.maximum,
    hvd.Product: torch.mul,
}
#: torch has next to no arithmetic of its own for these.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
DTYPES = [dtype for dtype in DTYPE_CODES if dtype not in UNSIGNED]


def _input(rank, shape, dtype, seed=0):
    """Small whole numbers: sums and products of four are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _everyones(shape, dtype, seed=0):
    return [_input(rank, shape, dtype, seed) for rank in range(hvd.size())]


def _reference(op, inputs):
    if inputs[0].dtype == torch.bool:
        combine = torch.logical_or if op in (hvd.Sum, hvd.Max) else torch.logical_and
    else:
        combine = OPS[op]
    return functools.reduce(combine, inputs)


def _equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def _reduce():
    for seed, (dtype, op, shape) in enumerate(
        itertools.product(DTYPES, OPS, [(), (0,), (5,), (3, 4)])
    ):
        inputs = _everyones(shape, dtype, seed)
        mine, expected = inputs[hvd.rank()], _reference(op, inputs)
        given = mine.clone()
        _equal(hvd.allreduce(mine, op=op), expected)
        _equal(hvd.synchronize(hvd.allreduce_async(mine, name=f"a{seed}", op=op)), expected)
        _equal(mine, given)
        assert hvd.allreduce_(mine, name=f"b{seed}", op=op) is mine
        _equal(mine, expected)


@dataclasses.dataclass
class Tenfold:
    """Somebody else's compressor, which is an object and cannot be hashed."""

    factor: float

    def compress(self, tensor):
        return tensor * self.factor, self.factor

    def decompress(self, tensor, ctx):
        return tensor / ctx


def _average_scale_and_compress():
    size, rank = hvd.size(), hvd.rank()
    twelve = torch.full((3,), 12.0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        _equal(hvd.allreduce(twelve.to(dtype)), twelve.to(dtype))
    _equal(hvd.allreduce(torch.tensor([rank + 1])), torch.tensor([(size + 1) // 2]))
    # More digits than a double has.
    long = torch.tensor([2**61 // size + rank, -(2**61 // size) + 1])
    _equal(hvd.allreduce(long), torch.tensor([2**61 // size + (size - 1) // 2, long[1]]))
    _equal(
        hvd.allreduce(twelve, None, None, hvd.Compression.none, hvd.Sum, 0.5, 4.0),
        twelve * 2 * size,
    )
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        for tensor in (twelve, twelve.double(), twelve.long()):
            _equal(hvd.allreduce(tensor, op=hvd.Sum, compression=compression), tensor * size)
            given = tensor.clone()
            for reduced in (
                hvd.synchronize(hvd.allreduce_async(given, op=hvd.Sum, compression=compression)),
                *hvd.synchronize(
                    hvd.grouped_allreduce_async([given], op=hvd.Sum, compression=compression)
                ),
            ):
                _equal(reduced, tensor * size)
                _equal(given, tensor)
            assert hvd.allreduce_(given, op=hvd.Sum, compression=compression) is given
            _equal(given, tensor * size)
            given = tensor.clone()
            (reduced,) = hvd.grouped_allreduce_([given], op=hvd.Sum, compression=compression)
            assert reduced is given
            _equal(given, tensor * size)
    _equal(hvd.allreduce(twelve, op=hvd.Sum, compression=Tenfold(10.0)), twelve * size)
    # An average is the nearest number to the quotient.
    whole = torch.arange(1.0, 500.0)
    for dtype in (torch.float16, torch.float32, torch.float64):
        sums = (whole if rank == 0 else torch.zeros_like(whole)).to(dtype)
        _equal(hvd.allreduce(sums), whole.to(dtype) / size)
    # bfloat16 keeps the range of float32, float16 does not.
    large = torch.tensor([2.0**20])
    _equal(hvd.allreduce(large, compression=hvd.Compression.bf16), large)
    # Ranks that share memory do not narrow tensors there, those on a GPU they do; one rank none.
    narrowed = hvd.allreduce(large, compression=hvd.Compression.fp16)
    assert torch.equal(narrowed, large) or (size > 1 and narrowed.isinf().all())
    # 16-bit numbers are added in 32 bits, and rounded once per addition.
    third = torch.full((100,), 1 / 3, dtype=torch.bfloat16)
    if size == 2:
        _equal(hvd.allreduce(third, op=hvd.Sum), (third.float() * 2).bfloat16())


def _unsigned():
    size, rank = hvd.size(), hvd.rank()
    for dtype in UNSIGNED:
        name = str(dtype).removeprefix("torch.")
        top = np.iinfo(name).max // size
        # NumPy has the arithmetic that torch lacks.
        inputs = [np.array([top, 0, r + 1], name) for r in range(size)]
        mine = torch.from_numpy(inputs[rank])
        results = {
            hvd.Sum: sum(inputs[1:], inputs[0]),
            hvd.Max: np.array([top, 0, size], name),
            hvd.Min: np.array([top, 0, 1], name),
        }
        for op, expected in results.items():
            assert (hvd.allreduce(mine, op=op).numpy() == expected).all()
        assert (hvd.allgather(mine).numpy() == np.concatenate(inputs)).all()
        assert (hvd.broadcast(mine, 0).numpy() == inputs[0]).all()


def _gather_and_broadcast():
    size, rank = hvd.size(), hvd.rank()
    for seed, dtype in enumerate(DTYPES):
        ragged = [_input(r, (2 * r, 3), dtype, seed) for r in range(size)]  # none from rank 0
        _equal(hvd.allgather(ragged[rank], name=f"g{seed}"), torch.cat(ragged))
        nothing = torch.zeros((0, 2), dtype=dtype)
        _equal(hvd.allgather(nothing), nothing)
        for root in range(size):
            inputs = _everyones((2, 2), dtype, seed)
            given = inputs[rank].clone()
            _equal(hvd.broadcast(given, root), inputs[root])
            _equal(given, inputs[rank])
            assert hvd.broadcast_(given, root, name="b") is given
            _equal(given, inputs[root])


def _differentiate():
    size, rank = hvd.size(), hvd.rank()
    weight = torch.arange(3.0) + 1

    def gradient(function, *args, **kwargs):
        leaf = torch.full((3,), float(rank + 1), requires_grad=True)
        output = function(leaf, *args, **kwargs)
        (output * weight.repeat(len(output) // 3) * (rank + 1)).sum().backward()
        return leaf.grad

    ranks = sum(range(1, size + 1))  # of rank + 1
    _equal(gradient(hvd.allreduce, op=hvd.Sum), weight * ranks)
    torch.testing.assert_close(gradient(hvd.allreduce, name="n"), weight * ranks / size)
    scaled = gradient(hvd.allreduce, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    _equal(scaled, weight * ranks * 6)
    _equal(gradient(hvd.allreduce, op=hvd.Sum, compression=hvd.Compression.bf16), weight * ranks)
    torch.testing.assert_close(gradient(hvd.allgather), weight * ranks / size)
    torch.testing.assert_close(gradient(hvd.allgather, name="n"), weight * ranks / size)
    for root in range(size):
        expected = weight * ranks / size if rank == root else torch.zeros(3)
        torch.testing.assert_close(gradient(hvd.broadcast, root), expected)
    # Rows of different number: each rank gets back those that it gave.
    leaf = torch.ones((rank + 1, 2), requires_grad=True)
    rows = torch.arange(float(ranks)).reshape(-1, 1)
    (hvd.allgather(leaf) * rows).sum().backward()
    begin = rank * (rank + 1) // 2
    _equal(leaf.grad, rows[begin : begin + rank + 1].expand(-1, 2))
    with torch.no_grad():
        assert not hvd.allreduce(leaf, op=hvd.Max).requires_grad if size == 1 else True


def _models_and_objects():
    size, rank = hvd.size(), hvd.rank()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(4, 2)
    ).to(memory_format=torch.channels_last)
    for params in (model.state_dict(), list(model.named_parameters()), list(model.parameters())):
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.uniform_()
        root = size - 1
        hvd.broadcast_parameters(params, root)
        for tensor in model.parameters():
            everyones = hvd.allgather(tensor.detach().contiguous().reshape(1, -1))
            _equal(everyones, everyones[root].expand_as(everyones))
    with pytest.raises(ValueError, match=r"list\(\.\.\.\)"):
        hvd.broadcast_parameters(model.named_parameters(), 0)
    with pytest.raises(ValueError, match="broadcast_object"):
        hvd.broadcast_parameters({"a": 3}, 0)

    for root, value in itertools.product(range(size), [None, {"a": [1, "x"] * 5000}, b""]):
        mine = value if rank == root else object()
        assert hvd.broadcast_object(mine, root, name="o") == value


def _optimizer_states():
    size, rank = hvd.size(), hvd.rank()
    for kind, options in [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {}),
    ]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1 * (rank + 1), **options)
        if rank == 0:  # the others have no state
            for _ in range(3):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        state = optimizer.state_dict()
        for other, expected in zip(
            _leaves(state), _leaves(hvd.broadcast_object(state, 0)), strict=True
        ):
            torch.testing.assert_close(other, expected, rtol=0, atol=0)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
        assert optimizer.param_groups[0]["params"][0] is model.weight
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.zeros(1)]), 0)

    # State of another dtype than the parameters; a scheduler that holds the wrapped optimizer.
    model = torch.nn.Linear(3, 2).bfloat16()
    inner = torch.optim.SGD(model.parameters(), lr=0.5 + rank, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
    outer = hvd.DistributedOptimizer(inner, model.named_parameters())
    if rank == 0:
        outer.state[model.weight]["momentum_buffer"] = torch.full((2, 3), 1 + 2**-20)
    hvd.broadcast_optimizer_state(outer, 0)
    buffer = outer.state[model.weight]["momentum_buffer"]
    torch.testing.assert_close(buffer, torch.full((2, 3), 1 + 2**-20), rtol=0, atol=0)
    assert outer.state is inner.state
    assert outer.param_groups is inner.param_groups
    assert outer.param_groups[0]["lr"] == 0.5
    outer.param_groups[0]["lr"] = 4.0
    with pytest.warns(UserWarning, match="before"):  # torch's, because there was no step
        scheduler.step()
    assert outer.param_groups[0]["lr"] == 2.0
    del size


def _gradients_without_state():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    used, fresh = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    used.grad = torch.ones(2)
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD([frozen, used, fresh, embedding.weight], lr=0.1, weight_decay=1.0)
    hvd.broadcast_optimizer_state(optimizer, 0, torch.nn.Sequential(embedding))
    assert (frozen.grad, embedding.weight.grad) == (None, None)
    assert (used.grad.tolist(), fresh.grad.tolist()) == ([1, 1], [0, 0])
    assert fresh.tolist() == [1, 1]
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam(embedding.parameters()), 0)
    assert embedding.weight.grad is None


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in _leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for entry in value for leaf in _leaves(entry)]
    return [value]


def _disagree():
    if hvd.size() == 1:
        return
    rank, last = hvd.rank(), hvd.size() - 1
    handle = hvd.allreduce_async_(torch.ones(3 + (rank == last)), name="odd")
    with pytest.raises(aiacc.MismatchError, match=r"allreduce\.odd(?s:.*)rank"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    with pytest.raises(hvd.HorovodInternalError, match="root"):
        hvd.broadcast_(torch.ones(2), int(rank == last), name="odd")
    _equal(hvd.allreduce(torch.ones(2), name="odd", op=hvd.Sum), torch.full((2,), hvd.size() * 1.0))


def _bool_has_no_average():
    true = torch.tensor([True, True])
    calls = [
        lambda: hvd.allreduce(true),
        lambda: hvd.allreduce_(true, op=hvd.Average),
        lambda: hvd.allreduce_async(true),
        lambda: hvd.allreduce_async_(true, average=True),
        lambda: hvd.grouped_allreduce([torch.ones(2), true]),
        lambda: hvd.grouped_allreduce_async_([true, true]),
        lambda: hvd.reducescatter(true, op=hvd.Average),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"op=Average of bool.* cast to float32"):
            call()
    for op in OPS:
        _equal(hvd.allreduce(true, op=op), true)


def _check_everything():
    torch.set_num_threads(1)
    hvd.init()
    _reduce()
    _average_scale_and_compress()
    _unsigned()
    _bool_has_no_average()
    _gather_and_broadcast()
    _differentiate()
    _models_and_objects()
    _optimizer_states()
    _gradients_without_state()
    _disagree()
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation(size):
    run_ranks(size, _check_everything)
