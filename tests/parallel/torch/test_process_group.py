"""`torch.distributed` on the backend "aiacc", against gloo and against torch itself."""

import functools
import gc
import inspect
import os
import weakref
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from tests.support.jobs import ONE_TO_THREE, TWO_AND_THREE, on_ranks
from tests.support.learning.training import Recipe, Together, alone, flat, squares, train
from tests.support.process_group import assert_equal, in_group, join, join_gloo, leave

REDUCTIONS = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def _input(rank, shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    values = torch.randint(1, 4, shape, generator=generator).to(dtype)
    return values * (1 - 2j) if dtype.is_complex else values


def _place(group=None):
    """This process's rank, the number of ranks, and their numbers in the world."""
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    return dist.get_rank(group), len(members), members


def _reduce(group=None):
    rank, size, (*_, root) = _place(group)
    for seed, (op, combine) in enumerate(REDUCTIONS.items()):
        bitwise = seed >= 4
        dtypes = [torch.int32, torch.uint8] if bitwise else [torch.float32, torch.int64]
        if op == dist.ReduceOp.SUM:
            dtypes += [torch.complex64, torch.complex128]
        for dtype in dtypes:
            for shape in ((), (0,), (3, 4)):
                inputs = [_input(r, shape, dtype, seed) for r in range(size)]
                expected = functools.reduce(combine, inputs)
                mine = inputs[rank].clone()
                dist.all_reduce(mine, op, group=group)
                assert_equal(mine, expected)
                mine = inputs[rank].clone()
                dist.reduce(mine, root, op, group=group)
                assert_equal(mine, expected if rank == size - 1 else inputs[rank])
    average = torch.full((2,), float(rank))
    dist.all_reduce(average, dist.ReduceOp.AVG, group=group)
    torch.testing.assert_close(average, torch.full((2,), (size - 1) / 2))
    columns = torch.arange(6.0).reshape(2, 3).T  # not contiguous
    dist.all_reduce(columns, group=group)
    assert_equal(columns, torch.arange(6.0).reshape(2, 3).T * size)


def _move(group=None):
    rank, size, members = _place(group)
    usual = torch.float32, torch.bfloat16, torch.int64, torch.bool
    for dtype in (*usual, torch.complex64, torch.complex128, torch.float8_e4m3fn):
        inputs = [_input(r, (2, 3), dtype) for r in range(size)]
        mine = inputs[rank]
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine, group=group)
        assert_equal(torch.stack(gathered), torch.stack(inputs))
        joined = torch.empty((2 * size, 3), dtype=dtype)
        dist.all_gather_into_tensor(joined, mine, group=group)
        assert_equal(joined, torch.cat(inputs))
        for root, member in enumerate(members):
            copy = mine.clone()
            dist.broadcast(copy, member, group=group)
            assert_equal(copy, inputs[root])
            at_root = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, at_root, member, group=group)
            if at_root is not None:
                assert_equal(torch.stack(at_root), torch.stack(inputs))


def _scatter(group=None):
    rank, size, members = _place(group)
    whole = torch.arange(2.0 * size).reshape(size, 2)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, whole * (rank + 1), group=group)
    assert_equal(part, whole[rank] * sum(range(1, size + 1)))
    dist.reduce_scatter(part, list(whole.unbind()), dist.ReduceOp.MAX, group=group)
    assert_equal(part, whole[rank])
    with pytest.raises(ValueError, match=f"expected {2 * size} in the input"):
        dist.reduce_scatter_tensor(part, torch.ones(2 * size + 1), group=group)
    for root, member in enumerate(members):
        rows = list((whole + root).unbind()) if rank == root else None
        dist.scatter(part, rows, member, group=group)
        assert_equal(part, whole[rank] + root)
    # Rank r sends r + 1 elements to everybody.
    sent = torch.full((size * (rank + 1),), float(rank))
    expected = torch.cat([torch.full((r + 1,), float(r)) for r in range(size)])
    received = torch.empty_like(expected)
    sizes = [r + 1 for r in range(size)]
    dist.all_to_all_single(received, sent, sizes, [rank + 1] * size, group=group)
    assert_equal(received, expected)
    lists = [torch.empty(r + 1) for r in range(size)]
    dist.all_to_all(lists, list(sent.split(rank + 1)), group=group)
    assert_equal(torch.cat(lists), expected)
    received = torch.empty(size)
    dist.all_to_all_single(received, torch.arange(float(size)) + 10 * rank, group=group)
    assert_equal(received, torch.arange(0, 10.0 * size, 10) + rank)


def _objects(group=None):
    rank, size, (*_, root_member) = _place(group)
    root = size - 1
    of_all = [{"rank": r, "data": [1] * (100 * r)} for r in range(size)]
    everyones = [None] * size
    dist.all_gather_object(everyones, of_all[rank], group=group)
    assert everyones == of_all
    values = ["a", rank] if rank == root else [None, None]
    dist.broadcast_object_list(values, root_member, group=group)
    assert values == ["a", root]
    at_root = [None] * size if rank == root else None
    dist.gather_object(rank, at_root, root_member, group=group)
    assert at_root == (list(range(size)) if rank == root else None)
    mine, texts = [None], [f"for {r}" for r in range(size)] if rank == root else None
    dist.scatter_object_list(mine, texts, root_member, group=group)
    assert mine == [f"for {rank}"]


def check_every_operation(group=None):
    """Every collective of torch, in a group of which this process is a member."""
    for check in (_reduce, _move, _scatter, _objects):
        check(group)
    dist.barrier(group=group)


def _asynchronous():
    size = dist.get_world_size()
    works = []
    for number in range(40):
        tensor = torch.full((1000,), float(number))
        works.append((dist.all_reduce(tensor, async_op=True), tensor))
    gc.collect()
    for number, (work, tensor) in enumerate(works):
        assert work.wait(timedelta(seconds=30))
        assert work.is_completed()
        assert work.is_success()
        assert_equal(tensor, torch.full((1000,), float(number * size)))
    tensor = torch.ones(3)
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert_equal(doubled.wait(), torch.full((3,), 2.0 * size))
    # Nobody waits for this one, and its tensor is forgotten.
    dist.all_reduce(torch.ones(100_000), async_op=True)
    gc.collect()
    dist.barrier()


def _callbacks_that_wait():
    """As the hook for PowerSGD does: a callback of a future waits for another one."""
    rank, size, _ = _place()

    def reduce_again(future):
        (total,) = future.value()
        return dist.all_reduce(total + rank, async_op=True).get_future().wait()

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(reduce_again)
    assert_equal(future.wait()[0], torch.full((1,), float(size * size + sum(range(size)))))


def _nobody_waits():
    works = []
    for _ in range(300):
        works.append(weakref.ref(dist.all_reduce(torch.ones(3), async_op=True)))
        dist.all_reduce(torch.ones(1))
    assert sum(work() is not None for work in works) < len(works)


def _disagree(rank, size):
    with pytest.raises(aiacc.MismatchError, match="shape"):
        dist.all_reduce(torch.ones(2 + rank))
    work = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    future = work.get_future()
    with pytest.raises(RuntimeError, match="shape"):
        future.wait()
    with pytest.raises(aiacc.MismatchError):
        work.wait()
    assert isinstance(work.exception(), aiacc.MismatchError)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the job goes on
    assert tensor.item() == size
    with pytest.raises(ValueError, match=r"tensor of dtype torch\.float8"):
        dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))
    one = torch.full((1, 1), float(rank + 1))
    dist.broadcast(one.expand(2, 3), 1)
    assert one.item() == 2
    dist.all_reduce(one.expand(2, 3))
    assert one.item() == 2 * size
    different = torch.arange(6.0).reshape(2, 3) if rank == 1 else torch.zeros(1, 1).expand(2, 3)
    with nullcontext() if rank == 1 else pytest.raises(ValueError, match="share memory"):
        dist.broadcast(different, 1)
    for call, text in (
        (lambda: dist.broadcast(one, size), f"rank {size} .*expected 0"),
        (lambda: dist.reduce(one, size), f"rank {size} .*expected 0"),
        (lambda: dist.isend(one, (rank + 1) % size, tag=-5), "tag=-5 .*expected 0 or more"),
        (lambda: dist.irecv(one, (rank + 1) % size, tag=-5), "tag=-5 .*expected 0 or more"),
        (lambda: dist.all_reduce(one, dist.ReduceOp.BAND), "BAND.*float32 .*expected integers"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    freed = torch.ones(300 * size)
    freed.untyped_storage().resize_(0)
    for operation, rows in (
        (dist.all_gather_into_tensor, 300),
        (dist.all_to_all_single, 300 * size),
    ):
        with pytest.raises(ValueError, match="no memory of its own"):
            inspect.unwrap(operation)(freed, torch.ones(rows))  # torch 2.4 prints it


@in_group(*ONE_TO_THREE)
def test_every_operation():
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "aiacc"
    assert (hvd.rank(), hvd.size()) == (rank, size)
    check_every_operation()
    _asynchronous()
    _callbacks_that_wait()
    _nobody_waits()
    if size > 1:
        _disagree(rank, size)
    dist.destroy_process_group()
    assert not hvd.is_initialized()


@on_ranks(2, starts=False, launcher="torchrun")
def test_torchrun_and_twice():
    total = torch.ones(2)
    for _ in range(2):  # again, in the same process
        dist.init_process_group("aiacc")
        dist.all_reduce(total)
        dist.destroy_process_group()
    assert total.tolist() == [4.0, 4.0]


@in_group(2)
def test_order_matters_within_a_group_only():
    groups = [dist.group.WORLD, dist.new_group([0, 1], backend="aiacc")]
    under_way = []
    for number in (0, 1) if dist.get_rank() == 0 else (1, 0):
        total, one = torch.full((3,), 10.0**number), torch.full((3,), 10.0 * number)
        work = dist.all_reduce(total, group=groups[number], async_op=True)
        under_way.append((work, total, torch.full((3,), 2 * 10.0**number)))
        received = [torch.empty(3) for _ in range(2)]
        work = dist.all_gather(received, one, group=groups[number], async_op=True)
        under_way.append((work, received, [one, one]))
    for work, result, expected in under_way:
        work.wait()
        assert_equal(result, expected)


@in_group(2)
def test_views_of_negated_memory():
    view = torch.complex(torch.ones(1), torch.full((1,), dist.get_rank() + 2.0)).conj().imag
    assert (view.is_contiguous(), view.is_neg()) == (True, True)
    received = [torch.empty(1) for _ in range(2)]
    dist.all_gather(received, view)
    assert_equal(received, [torch.full((1,), -2.0), torch.full((1,), -3.0)])
    dist.all_reduce(view)
    assert_equal(view, torch.full((1,), -5.0))
    for call in (hvd.allreduce, hvd.allreduce_):
        with pytest.raises(ValueError, match=r"negated values.*resolve_neg\(\)"):
            call(view)


_SOON, _NEVER = timedelta(seconds=3), timedelta(hours=1)
#: Where a limit is given: what passes it.
_LATE = {
    "init_process_group": ("all_reduce", lambda _: dist.all_reduce(torch.ones(1))),
    "new_group": ("recv", lambda group: dist.recv(torch.ones(1), 1, group=group)),
    "set_timeout": ("send", lambda _: dist.send(torch.ones(1), 1)),
    "barrier": ("barrier", lambda _: dist.barrier(timeout=_SOON)),
    "making a group": (
        "new_group",
        lambda _: dist.new_group([0, 1], _SOON, use_local_synchronization=True),
    ),
}


_OLD = "timeout" not in inspect.signature(dist.barrier).parameters
_BARRIER = pytest.param("barrier", marks=pytest.mark.skipif(_OLD, reason="no timeout= of it"))


@pytest.mark.parametrize("where", [_BARRIER, *sorted(_LATE.keys() - {"barrier"})])
@on_ranks(3, starts=False)
def test_a_timeout_that_has_passed_ends_the_job(where, port, tmp_path):
    operation, call = _LATE[where]
    store = dist.FileStore(str(tmp_path / "store"), 3)
    join(port, timeout=_SOON if where == "init_process_group" else _NEVER)
    group = dist.new_group([0, 1], _SOON) if where == "new_group" else None
    whom = "one of ranks 1, 2" if operation in ("all_reduce", "barrier") else "rank 1"
    text = rf"{operation}: {whom} did not come within its timeout of 3 s .* longer timeout"
    if dist.get_rank() == 0:
        if where == "set_timeout":
            dist.group.WORLD.set_timeout(_SOON)
        with pytest.raises(aiacc.CollectiveTimeoutError, match=text):
            call(group)
        store.set("raised", b"")
    else:
        store.wait(["raised"], _NEVER)
        with pytest.raises(aiacc.ShutdownError, match=f"rank 0 has given up: .*{text}"):
            dist.barrier()


@in_group(2)
def test_a_wait_with_a_timeout_leaves_the_operation_under_way(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 2)
    if dist.get_rank() == 1:
        store.wait(["given up"], _NEVER)
    totals = [torch.ones(1), torch.ones(2), torch.ones(3)]
    works = [dist.all_reduce(total, async_op=True) for total in totals[:2]]
    works[1].get_future()  # another thread waits for it
    move = dist.irecv if dist.get_rank() == 0 else dist.isend
    works.append(move(totals[2].mul_(1 + dist.get_rank()), 1 - dist.get_rank()))
    if dist.get_rank() == 0:
        for work in works:
            with pytest.raises(aiacc.CollectiveTimeoutError, match=r"rank 1 .* of 0\.01 s"):
                work.wait(timedelta(milliseconds=10))
        store.set("given up", b"")
    for work in works:
        assert work.wait(_NEVER)
    assert_equal(totals, [torch.full((count,), 2.0) for count in (1, 2, 3)])


_LAUNCHERS = ("aiaccrun", "srun", "mpirun", "openmpi")


@on_ranks(2, starts=False, ways={name: {"launcher": name} for name in _LAUNCHERS})
def test_ranks_that_a_launcher_of_others_started():
    """Without any of torch's variables; what started the ranks says everything."""
    for hvd_first in (False, True):
        if hvd_first:
            hvd.init()
        for _ in range(2):
            dist.init_process_group("aiacc")
            total = torch.ones(3)
            dist.all_reduce(total)
            assert_equal(total, torch.full((3,), float(dist.get_world_size())))
            pair = dist.new_group([0, 1], backend="gloo")
            dist.barrier(group=pair)
            assert aiacc.basics.engine() == "hierarchical"
            dist.destroy_process_group()
        assert hvd.is_initialized() == hvd_first  # if so, it was not the group's
        assert not dist.is_initialized()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
    hvd.shutdown()


@on_ranks(1, starts=False, ways={"alone": {"launcher": "python"}, "launched": {}})
def test_one_rank_is_a_group_if_a_launcher_says_so():
    if "AIACC_RANK" not in os.environ:
        with pytest.raises(ValueError, match="environment variable RANK expected"):
            dist.init_process_group("aiacc")
        return
    dist.init_process_group("aiacc")
    assert dist.get_world_size() == 1
    dist.destroy_process_group()


@on_ranks(2, starts=False)
def test_starts_that_must_fail(tmp_path):
    rank = int(os.environ["AIACC_RANK"])
    text = r"init_process_group\(world_size=3\), but rendezvous says 2"
    with pytest.raises(ValueError, match=text):
        dist.init_process_group("aiacc", rank=rank, world_size=3)
    if rank == 0:
        store, soon = dist.FileStore(str(tmp_path / "store"), 2), timedelta(seconds=1)
        with pytest.raises(aiacc.BootstrapError, match="rank 1 of 2 did not come within 1 s"):
            dist.init_process_group("aiacc", timeout=soon, store=store, rank=0, world_size=2)


# --- the communication hook for DistributedDataParallel, against that itself


def _six_layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))


_sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
_LOSS = squares(4, 8, dtype=torch.float32)


def _trained(hooked, state=None, make=_six_layers, **options):
    model = DistributedDataParallel(make(), bucket_cap_mb=0.001, **options)
    if hooked:
        model.register_comm_hook(state, hvd.allreduce_hook)
    return flat(train(Together(model, _sgd(model.parameters()), _LOSS), range(5)).model)


class _Complex(nn.Module):
    """Parameters and buffers of dtypes that no reduction has."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(8, 8, dtype=torch.complex64) for _ in range(3)))
        self.register_buffer("turn", torch.exp(torch.full((8,), 1j * rank)))
        self.register_buffer("small", torch.full((8,), rank).to(torch.float8_e5m2))

    def forward(self, batch):
        assert not self.small.float().any()  # rank 0's
        return torch.view_as_real(self.layers(batch * self.turn))


@in_group(2)
def test_complex_parameters_and_buffers():
    expected = flat(train(alone(Recipe(lambda: _Complex(0), _sgd, _LOSS)), range(5)).model)
    for hooked in (False, True):
        torch.testing.assert_close(_trained(hooked, make=lambda: _Complex(hvd.rank())), expected)
    maximum = dist.AllreduceOptions()
    maximum.reduceOp = dist.ReduceOp.MAX
    with pytest.raises(ValueError, match=r"complex64.*view_as_real"):
        dist.group.WORLD.allreduce([expected], maximum).wait()


def _two_models_in_one_pass():
    models = [DistributedDataParallel(_six_layers()) for _ in range(2)]
    for model in models:
        model.register_comm_hook(None, hvd.allreduce_hook)
    for step in range(3):
        torch.manual_seed(100 * step + hvd.rank())
        batch = torch.randn(4, 8)
        (models[0](batch).sum() + 2 * models[1](batch).sum()).backward()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(2 * one.grad, other.grad)


def _failure_reaches_the_caller():
    model = DistributedDataParallel(_six_layers())
    model.register_comm_hook(None, hvd.allreduce_hook)
    loss = model(torch.ones(1, 8)).sum()
    hvd.shutdown()
    with pytest.raises(RuntimeError, match=r"initialized|shut"):
        loss.backward()


@on_ranks(3)
def test_hooks_in_several_process_sets(port):
    """Ranks have seen different numbers of buckets, and know models that others do not."""
    join_gloo(port)
    known = _six_layers()
    for ranks, module in (([0, 1], known), ([0, 2], _six_layers()), ([1, 2], known)):
        group, process_set = dist.new_group(ranks), hvd.add_process_set(ranks)
        if process_set.included():
            model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.001)
            model.register_comm_hook(process_set, hvd.allreduce_hook)
            for _ in range(3):
                module.zero_grad()
                model(torch.full((1, 8), hvd.rank() + 1.0)).sum().backward()
            gradients = torch.cat([p.grad.reshape(1, -1) for p in module.parameters()], 1)
            mine, other = hvd.allgather(gradients, process_set=process_set)
            assert_equal(mine, other)
            del model
    leave()


@on_ranks(*TWO_AND_THREE)
def test_same_parameters_as_plain_ddp(port):
    join_gloo(port)
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        expected = _trained(False, **options)
        before = aiacc.stats()["tensors"]
        torch.testing.assert_close(_trained(True, **options), expected)
        assert aiacc.stats()["tensors"] >= before + 5
    torch.testing.assert_close(_trained(True, hvd.global_process_set), expected)
    _two_models_in_one_pass()
    dist.barrier()
    _failure_reaches_the_caller()
    leave()
