"""aiacc.torch against NumPy and torch itself: operations, gradients, models and objects."""

from __future__ import annotations

import dataclasses
import gc

import ml_dtypes
import numpy as np
import pytest
import torch

import aiacc
import aiacc.torch as hvd
from aiacc.collectives import objects, submission
from aiacc.collectives.handles import pending
from aiacc.collectives.objects import gather_objects
from aiacc.optim import AdamSGD
from tests.support import operations
from tests.support.jobs import ONE_TO_THREE, on_ranks
from tests.support.operations import DTYPES, FEW_SHAPES, Case, Frontend
from tests.support.process_group import assert_equal
from tests.support.ranks import run_ranks


def to_torch(array):
    """A tensor with these elements, on the default device."""
    if hasattr(ml_dtypes, array.dtype.name):
        bits = to_torch(array.view(f"i{array.dtype.itemsize}"))
        return bits.view(getattr(torch, array.dtype.name))
    host = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return torch.empty(array.shape, dtype=host.dtype).copy_(host)


def from_torch(tensor):
    """An array with its elements."""
    host = tensor.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        bits = host.view({1: torch.int8, 2: torch.int16}[host.itemsize])
        return bits.numpy().view(getattr(ml_dtypes, name))
    return host.numpy()


FRONT = Frontend(hvd, to_torch, from_torch)


def _table():
    for number, case in enumerate(operations.table(hvd.rank(), hvd.size(), DTYPES, FEW_SHAPES)):
        operations.check(FRONT, case, number)


@dataclasses.dataclass
class Tenfold:
    """Somebody else's compressor, which is an object and cannot be hashed."""

    factor: float

    def compress(self, tensor):
        return tensor * self.factor, self.factor

    def decompress(self, tensor, ctx):
        return tensor / ctx


def _compress():
    size = hvd.size()
    twelve = torch.full((3,), 12.0)
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in (np.float32, np.float64, np.int64):
            given, options = np.full(3, 12, dtype), {"compression": compression}
            operations.check(FRONT, Case("allreduce", given, given * size, "Sum", options))
            group = Case("grouped_allreduce", [given], [given * size], "Sum", options)
            operations.check(FRONT, group)
    part = hvd.reducescatter(twelve.repeat(size), None, hvd.Compression.fp16, hvd.Sum)
    assert_equal(part, twelve * size)
    assert_equal(hvd.allreduce(twelve, op=hvd.Sum, compression=Tenfold(10.0)), twelve * size)
    # bfloat16 keeps the range of float32, float16 does not.
    large = torch.tensor([2.0**20])
    assert_equal(hvd.allreduce(large, compression=hvd.Compression.bf16), large)
    # Ranks that share memory do not narrow tensors there, those on a GPU they do; one rank none.
    narrowed = hvd.allreduce(large, compression=hvd.Compression.fp16)
    assert torch.equal(narrowed, large) or (size > 1 and narrowed.isinf().all())
    # 16-bit numbers are added in 32 bits, and rounded once per addition.
    third = torch.full((100,), 1 / 3, dtype=torch.bfloat16)
    if size == 2:
        assert_equal(hvd.allreduce(third, op=hvd.Sum), (third.float() * 2).bfloat16())


def _differentiate(call, inputs, upstream):
    for tensor in inputs:
        tensor.requires_grad_()
    outputs = call(inputs)
    sum((one * other).sum() for one, other in zip(outputs, upstream, strict=True)).backward()
    return [tensor.grad for tensor in inputs]


def _gradients():
    size = hvd.size()
    operations.check_gradients(FRONT, _differentiate)
    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, compression=hvd.Compression.bf16).sum().backward()
    assert_equal(leaf.grad, torch.full((3,), float(size)))
    with torch.no_grad():
        assert not hvd.allreduce(leaf).requires_grad
    leaf = torch.ones(size + 1, requires_grad=True)
    output, received = hvd.alltoall(leaf, [1] * size)
    assert not received.requires_grad
    output.sum().backward()
    assert leaf.grad.tolist() == [1.0] * size + [0.0]  # what was not sent has none
    leaf = torch.tensor([1.0 + 2j], requires_grad=True)
    for one in (hvd.broadcast(leaf, 0), hvd.allgather(leaf), *hvd.grouped_allgather([leaf])):
        leaf.grad = None
        (one.conj() * (1 - 2j)).real.sum().backward()
        part = 0 if one.shape == (1,) and hvd.rank() > 0 else 1
        assert_equal(leaf.grad, torch.full((1,), part * (1 - 2j)))
    leaf = torch.ones(3, 2, requires_grad=True)  # the gradient comes as a sparse one
    rows = torch.nn.functional.embedding(torch.tensor([1]), hvd.allreduce(leaf), sparse=True)
    rows.sum().backward()
    assert_equal(leaf.grad, torch.tensor([[0.0, 0], [1, 1], [0, 0]]))
    for one in (hvd.allgather(leaf), hvd.alltoall(leaf.repeat(size, 1))):
        one.mul_(2)
    # Of a group one is not used, one needs no gradient.
    leaf = torch.ones(2, requires_grad=True)
    first, *_ = hvd.grouped_allreduce([leaf, torch.ones(2), torch.ones(1).long()], op=hvd.Sum)
    first.sum().backward()
    assert_equal(leaf.grad, torch.full((2,), float(size)))


class _Scaled(torch.autograd.Function):
    """``x`` times the first factor; its gradient is scaled by the second, and so on."""

    @staticmethod
    def forward(ctx, x, *factors):
        ctx.factors = factors[1:]
        return x * factors[0]

    @staticmethod
    def backward(ctx, grad):
        return _Scaled.apply(grad, *ctx.factors), *(None for _ in range(len(ctx.factors) + 1))


def _second_derivatives():
    """Those of one process that has the tensors of all ranks, by Horovod's gradients."""
    rank, size = hvd.rank(), hvd.size()
    average, scatter = (1, 1 / size, 1 / size, 1 / size), (1, size, 1, size)
    for verb, factors, of_all, call in (
        ("allreduce", (1, 1, 1, 1), lambda xs: [sum(xs)] * size, lambda f, x: f(x, op=hvd.Sum)),
        ("allgather", average, lambda xs: [torch.cat(xs)] * size, lambda f, x: f(x)),
        ("broadcast", average, lambda xs: [xs[0] + 0 * sum(xs)] * size, lambda f, x: f(x, 0)),
        (
            "alltoall",
            (1, 1, 1, 1),
            lambda xs: [torch.stack([x[r] for x in xs]) for r in range(size)],
            lambda f, x: f(x, [1] * size)[0],  # of a row more, which has no gradient
        ),
        (
            "reducescatter",
            scatter,
            lambda xs: [sum(xs)[2 * r : 2 * r + 2] for r in range(size)],
            lambda f, x: f(x, op=hvd.Sum),
        ),
    ):
        rows = size + 1 if verb == "alltoall" else 2 * size
        xs = [torch.arange(2.0 * rows).reshape(rows, 2) + r for r in range(size)]
        xs = [x.to(torch.float64).requires_grad_() for x in xs]
        losses = sum((y**3).sum() for y in of_all([_Scaled.apply(x, *factors) for x in xs]))
        sum((g**2).sum() for g in torch.autograd.grad(losses, xs, create_graph=True)).backward()
        calls = {verb: call}
        if hasattr(hvd, f"grouped_{verb}"):
            calls[f"grouped_{verb}"] = lambda f, x, one=call: one(lambda x, **o: f([x], **o)[0], x)
        for name, one in calls.items():
            x = xs[rank].detach().clone().requires_grad_()
            y = one(getattr(hvd, name), x)
            (g,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
            (g**2).sum().backward()
            torch.testing.assert_close(x.grad, xs[rank].grad, msg=lambda m, n=name: f"{n}: {m}")


def _writes_are_counted():
    for change in (
        hvd.allreduce_,
        lambda t: hvd.allreduce_(t, compression=hvd.Compression.bf16),
        lambda t: hvd.synchronize(hvd.grouped_allreduce_async_([t])),
        lambda t: hvd.broadcast_parameters([t], hvd.size() - 1),
    ):
        root = torch.ones(2, requires_grad=True).sqrt()  # whose gradient needs it
        hvd.allreduce(root.detach())
        change(root.detach())
        with pytest.raises(RuntimeError, match=r"inplace operation.*version 1"):
            root.sum().backward()
        change(torch.inference_mode()(torch.ones)(2))


def _models():
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
            assert_equal(everyones, everyones[root].expand_as(everyones))
    with pytest.raises(ValueError, match=r"list\(\.\.\.\)"):
        hvd.broadcast_parameters(model.named_parameters(), 0)
    with pytest.raises(ValueError, match="broadcast_object"):
        hvd.broadcast_parameters({"a": 3}, 0)
    odd = [torch.full((2, 2), rank).to(dtype) for dtype in (torch.complex64, torch.float8_e5m2)]
    negated = torch.complex(torch.ones(1), torch.full((1,), rank + 1.0)).conj()
    hvd.broadcast_parameters([*odd, odd[0].t(), negated, negated.imag], 0)
    assert all(not tensor.to(torch.complex64).any() for tensor in odd)
    assert_equal(negated, torch.tensor([1 - 1j]))


def _optimizer_states():
    rank = hvd.rank()
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    for kind, options in [(sgd, {"momentum": 0.9}), (adam, {"amsgrad": True}), (sgd, {})]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1 * (rank + 1), **options)
        if rank == 0:  # the others have no state
            for _ in range(3):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        state = optimizer.state_dict()
        torch.testing.assert_close(state, hvd.broadcast_object(state, 0), rtol=0, atol=0)
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
    assert_equal(buffer, torch.full((2, 3), 1 + 2**-20))
    assert outer.state is inner.state
    assert outer.param_groups is inner.param_groups
    assert outer.param_groups[0]["lr"] == 0.5
    outer.param_groups[0]["lr"] = 4.0
    with pytest.warns(UserWarning, match="before"):  # torch's, because there was no step
        scheduler.step()
    assert outer.param_groups[0]["lr"] == 2.0


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


def _refuse_splits():
    size = hvd.size()
    rows = torch.ones(size + 1, 2)
    for splits, text in [
        ([1] * (size + 1), "expected one for each rank"),
        (torch.ones(size, dtype=torch.int64), r"int64.*splits\.to\(torch\.int32\)"),
        (torch.ones(size), r"float32.*splits\.to\(torch\.int32\)"),
    ]:
        with pytest.raises(ValueError, match=rf"alltoall of 'bad'.*{text}"):
            hvd.alltoall(rows, splits, name="bad")
    for wrong, text in [
        *[(rows, f"expected a multiple of {size}.*give splits")] * (size > 1),
        (torch.tensor(1.0), "without dimensions"),
        (torch.ones(3, 2 * size).T, "strides"),
    ]:
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(wrong)


def _refuse_groups_and_scatters():
    size, rank = hvd.size(), hvd.rank()
    for op in (hvd.Min, hvd.Max, hvd.Adasum, 17):
        for scatter, given in (
            (hvd.reducescatter, torch.ones(2)),
            (hvd.grouped_reducescatter, [torch.ones(2)]),
        ):
            with pytest.raises(hvd.HorovodInternalError, match="expected Average or Sum"):
                scatter(given, op=op)
    with pytest.raises(ValueError, match="without dimensions"):
        hvd.reducescatter(torch.tensor(1.0))
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_async_, hvd.grouped_allgather):
        with pytest.raises(TypeError, match=r"wrap it in a list"):
            call(torch.ones(2))
        with pytest.raises(ValueError, match="empty list"):
            call([])
        with pytest.raises(ValueError, match=r"tensor 1 of grouped_all.* 'n'.*strides"):
            call([torch.ones(2), torch.ones(2, 3).T], name="n")
    if size == 1:
        return
    with pytest.raises(aiacc.MismatchError, match=r"reducescatter\.odd"):
        hvd.reducescatter(torch.ones(3 + rank), "odd")
    for odd in ([torch.ones(2), torch.ones(2 + rank)], [torch.ones(2)] * (1 + rank)):
        with pytest.raises(aiacc.MismatchError, match=r"grouped_allreduce\.odd"):
            hvd.grouped_allreduce(odd, name="odd")


def _tensors_nobody_else_holds():
    handles = [hvd.grouped_allreduce_async_([torch.ones(9) * n], name=f"{n}") for n in range(20)]
    gc.collect()
    for number, handle in enumerate(handles):
        assert_equal(hvd.synchronize(handle), [torch.full((9,), float(number))])
        assert hvd.synchronize(handle) is None
    splits = torch.ones(hvd.size(), dtype=torch.int32)
    assert_equal(hvd.alltoall(torch.ones(hvd.size()), splits)[1], splits)


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
    byte = torch.ones(2, dtype=torch.uint8)
    for one, other in (
        (torch.float8_e5m2, torch.float8_e4m3fn),
        *([(torch.int4, torch.uint4)] if hasattr(torch, "int4") else []),
        (torch.bits16, torch.complex32),
    ):
        item = byte if one.itemsize == 1 else torch.ones(4, dtype=torch.uint8)
        odd = item.view(one if rank == last else other)
        with pytest.raises(aiacc.MismatchError, match=r"broadcast\.odd(?s:.*)rank"):
            hvd.broadcast_(odd, 0, name="odd")
        with pytest.raises(aiacc.MismatchError, match=r"grouped_allgather\.odd(?s:.*)rank"):
            hvd.grouped_allgather([torch.ones(2), odd], name="odd")
    assert hvd.allreduce(torch.ones(2), name="odd", op=hvd.Sum).tolist() == [hvd.size()] * 2


@on_ranks(1, 3)
def test_every_operation():
    _table()
    _compress()
    operations.check_bool_has_no_average(FRONT)
    _gradients()
    _second_derivatives()
    _writes_are_counted()
    _models()
    _optimizer_states()
    _gradients_without_state()
    _tensors_nobody_else_holds()
    _refuse_splits()
    _refuse_groups_and_scatters()
    _disagree()
    operations.check_complex_numbers_are_no_pairs(FRONT)
    operations.check_join(FRONT)
    assert not pending
    hvd.barrier()


@pytest.mark.fast
def test_every_operation_on_two_ranks():
    run_ranks(2, test_every_operation.body, {})


# --- objects and sparse tensors over all ranks


@on_ranks(*ONE_TO_THREE)
def test_objects():
    operations.check_objects(hvd)
    mine, root = "x" * (100 * hvd.rank()), hvd.size() - 1
    everyones = hvd.allgather_object(mine)
    for name in (None, "object"):
        gathered = gather_objects(mine, name, hvd.global_process_set, to=root)
        assert gathered == (everyones if hvd.rank() == root else [])
    assert hvd.broadcast_object(None) is None


@on_ranks(3)
def test_objects_for_one_rank_connect_no_others():
    """Piece by piece, over the connections that there are."""
    objects._AT_A_TIME = 100
    submission.alltoall = None
    mine = "x" * (1000 if hvd.rank() == 1 else 10)
    for to in range(hvd.size()):
        got = gather_objects(mine, "some", hvd.global_process_set, to)
        assert list(map(len, got)) == ([10, 1000, 10] if hvd.rank() == to else [])


@on_ranks(2)
def test_default_device_is_left_to_the_caller():
    """Only tensors that the caller makes go where torch.set_default_device says."""
    weight = torch.ones(3, requires_grad=True)
    batch = torch.ones(2, 4)
    parts = torch.ones(hvd.size())
    norm = hvd.SyncBatchNorm(4)
    sparse = torch.ones(2, 3).to_sparse()
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, width) for width in (2, 8192, 2)]
    plain = torch.optim.LBFGS(models[0].parameters())
    lbfgs = hvd.DistributedOptimizer(plain, models[0].named_parameters())
    low_rank = hvd.DistributedOptimizer(
        AdamSGD(models[1].parameters()), models[1].named_parameters(), compression="powersgd:rank=1"
    )
    adam = torch.optim.Adam(models[2].parameters(), fused=True)  # or torch 2.4 counts on "meta"
    decoupled = hvd.DistributedOptimizer(adam, schedule="decoupled", model=models[2])

    def loss(model):
        total = model(batch).square().sum()
        total.backward()
        return total.item()

    with torch.device("meta"):
        total = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)()
        for model in models[1:]:
            loss(model)
        low_rank.step()
        decoupled.clip_grad_norm_(1.0)
        decoupled.step()
        hvd.broadcast_optimizer_state(decoupled, root_rank=0)
        hvd.broadcast_optimizer_state(low_rank, root_rank=0)
        low_rank.feedback.gathered_state_dict()
        lbfgs.step(lambda: loss(models[0]))
        assert hvd.broadcast_object({"epoch": 3}, root_rank=0) == {"epoch": 3}
        assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
        gathered = hvd.allgather(weight)
        received, splits = hvd.alltoall(parts, splits=[1] * hvd.size())
        normalised = norm(batch)
    gathered.sum().backward()
    for tensor in (gathered, weight.grad, received, splits, normalised, total):
        assert tensor.device.type == "cpu"


def _random(rank, shape, dtype, density):
    generator = torch.Generator().manual_seed(rank)
    dense = torch.rand(shape, generator=generator, dtype=torch.float64) * 8 + 1
    dense[torch.rand(shape, generator=generator) > density] = 0
    return dense.to(dtype)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@on_ranks(*ONE_TO_THREE)
def test_sparse_tensors():
    running = []
    for shape in ((7,), (5, 4), (3, 4, 2)):
        for dtype in (torch.float64, torch.float32, torch.complex64, torch.bfloat16, torch.int64):
            for op in (hvd.Sum, hvd.Average):
                for density in (0.0, 0.3, 1.0):
                    parts = [_random(rank, shape, dtype, density) for rank in range(hvd.size())]
                    expected = sum(parts)
                    if op == hvd.Average:
                        expected = expected / hvd.size()
                    for sparse_dim in range(1, len(shape) + 1):
                        mine = parts[hvd.rank()].to_sparse(sparse_dim)
                        call = hvd.sparse_allreduce_async(mine, f"{len(running)}", op)
                        running.append((call, expected))
    for call, expected in reversed(running):
        result = call()
        assert result.is_sparse
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.to_dense(), expected)
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    total = hvd.sparse_allreduce_async(twice, name="twice", op=hvd.Sum)()
    assert total.to_dense().tolist() == [0, 3 * hvd.size(), 0]


@on_ranks(2)
def test_mistakes_with_sparse_tensors():
    tensor = torch.ones(2, 2).to_sparse()
    with pytest.raises(ValueError, match=r"'a'.*strided.*to_sparse\(\)"):
        hvd.sparse_allreduce_async(torch.ones(2), "a", hvd.Sum)
    with pytest.raises(ValueError, match=r"op=Min.*Average or Sum.*to_dense"):
        hvd.sparse_allreduce_async(tensor, "a", hvd.Min)
    ones = torch.ones(3, 2, dtype=torch.float64)
    rows, elements = ones.to_sparse(1), ones.to_sparse(2)
    for number, (mine, theirs, text) in enumerate((
        (rows, rows.long(), "dtype .*float64.* int64"),
        (rows.float(), rows.to(torch.complex64), r"shape .*\[., 2\].*\[., 2, 2\]"),
        (elements, rows, r"shape .*\[., 2\].*\[., 1\]"),
        (rows, ones.reshape(3, 2, 1).to_sparse(1), "number of tensors 4.*number of tensors 5"),
        (rows, torch.ones(4, 2, dtype=torch.float64).to_sparse(1), r"shape .*\[0, 3\].*\[0, 4\]"),
        (rows, rows.float(), "dtype .*float64.* float32"),
    )):  # fmt: skip
        call = hvd.sparse_allreduce_async(theirs if hvd.rank() else mine, f"{number}", hvd.Sum)
        text = rf"'sparse_allreduce\.{number}': rank 0 .*{text}.*sparse_as_dense=True"
        with pytest.raises(aiacc.MismatchError, match=text):
            call()
    call = hvd.sparse_allreduce_async(rows, "op", hvd.Average if hvd.rank() else hvd.Sum)
    with pytest.raises(aiacc.MismatchError, match=r"sparse_allreduce\.op.* op Sum, .* op Average"):
        call()
