"""How gradients are reduced: views of persistent buckets, groups, plans from outside, memory.

That training with them is the same is in test_optimizer_situations.py.
"""

import gc
import tracemalloc
import weakref
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aiacc
import aiacc.torch as hvd
from aiacc import _core
from aiacc.compression.codecs import parse
from aiacc.compression.policy import Policy
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.plan import Planner
from aiacc.torch.reducer.reducer import GradientReducer
from aiacc.torch.reducer.storage import flat_buckets, own_memory
from tests.parallel.torch.test_optimizer_situations import NET, VIEWS, Net, loss, momentum
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Alone,
    Recipe,
    Together,
    alone,
    check_learned,
    check_same_everywhere,
    compare,
    distributed,
    train,
)


def _wrap(model, **options):
    return distributed(model, momentum(model.parameters()), **VIEWS, **options)


def _flats(optimizer):
    return [bucket.flat for bucket in optimizer._aiacc_reducer.buckets if bucket.flat is not None]


def _gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _lies_in_a_bucket(gradient, optimizer):
    begin = gradient.data_ptr()
    for flat in _flats(optimizer):
        if flat.data_ptr() <= begin < flat.data_ptr() + flat.numel() * flat.element_size():
            return True
    return False


def _stay(bucket_bytes, training):
    places = None
    for batch in range(5):
        training.zero_grad(set_to_none=False)
        training.backward(batch)
        training.step()
        if isinstance(training, Alone):
            continue
        gradients = _gradients(training.model)
        assert all(_lies_in_a_bucket(gradient, training.optimizer) for gradient in gradients)
        assert places in (None, [gradient.data_ptr() for gradient in gradients])
        places = [gradient.data_ptr() for gradient in gradients]
        assert training.model.conv.weight.grad.stride() == training.model.conv.weight.stride()
    if not isinstance(training, Alone):
        buckets = len(_flats(training.optimizer))
        assert buckets == 2 if bucket_bytes > 10_000 else buckets > 2


def _given_up(droppers, training):
    """Ranks below ``droppers`` drop their gradients before each step, the others zero them."""
    model, drops = training.model, hvd.rank() < droppers
    if isinstance(training, Alone):
        train(training, range(5))
        return
    # Those on a GPU always do: a copy costs little there.
    stay = 2 * droppers <= hvd.size() or not model.conv.weight.is_cpu
    plans = []
    for batch in range(5):
        training.zero_grad(set_to_none=drops)
        training.backward(batch)
        training.step()
        plans.append(training.optimizer.buckets)
        within = all(_lies_in_a_bucket(g, training.optimizer) for g in _gradients(model))
        assert within == bool(_flats(training.optimizer)) == (batch == 0 or stay)
    # What is reduced as one operation does not depend on where it is.
    assert plans[1:] == [plans[0]] * 4
    if drops and not stay:  # nor does anybody hold the memory that was given up
        gradients = _gradients(model)
        assert [g.untyped_storage().nbytes() for g in gradients] == [g.nbytes for g in gradients]


@on_ranks(2, 3, each={"bucket_bytes": [64, 1 << 20]})
def test_gradients_stay_unless_most_are_dropped(bucket_bytes):
    options = {"bucket_bytes": bucket_bytes, **VIEWS}
    compare(partial(_stay, bucket_bytes), NET, **options)
    for droppers in range(1, hvd.size() + 1):
        compare(partial(_given_up, droppers), NET, **options)


@on_ranks(2, each={"which": [0, 1], "options": [{}, {"groups": 1}, VIEWS], "late": [False, True]})
def test_a_gradient_that_some_ranks_drop_before_it_leaves_counts_as_zeros(which, options, late):
    """By a hook that was there before ours; or ``late``, when its bucket waits for another one."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    dropped = model[which].weight
    drops = [False] * hvd.size()

    def drop(parameter):
        if drops[hvd.rank()]:
            parameter.grad = None

    if not late:
        dropped.register_post_accumulate_grad_hook(drop)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = distributed(model, sgd, op=hvd.Sum, **options)
    for step in range(6):
        if options or not late:  # otherwise it leaves at once
            drops[:] = [step == 3, step not in ([0, 3] if late else [3])]
        optimizer.zero_grad(set_to_none=step > 3)
        value = model[1](model[0](torch.full((1, 3), step + 1.0))).sum()
        (expected,) = torch.autograd.grad(value, dropped, retain_graph=True)
        value.backward()
        if late:
            drop(dropped)
        optimizer.step()
        torch.testing.assert_close(dropped.grad, (hvd.size() - sum(drops)) * expected)
    check_same_everywhere(model)


@on_ranks(2, 3)
def test_a_rank_that_joined_learns_what_became_of_views():
    model = Net()
    training = Together(model, _wrap(model), loss)
    for batch in range(1 if hvd.rank() == 0 else 3):
        train(training, [batch])
        assert len(_flats(training.optimizer)) == 2
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    train(training, [3])
    assert bool(_flats(training.optimizer)) != model.conv.weight.is_cpu
    train(training, [4])
    values = hvd.allgather_object([gradient.sum().item() for gradient in _gradients(model)])
    assert values == values[:1] * hvd.size()


@on_ranks(2, 3)
def test_ranks_whose_memory_formats_differ_are_told():
    layer = nn.Linear(2, 2, bias=False)
    if hvd.rank() == 0:  # the same gradients, but another order in memory
        layer.weight.data = layer.weight.data.t().contiguous().t()
    optimizer = _wrap(layer)
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="memory formats"):
        optimizer.step()
    optimizer.zero_grad()
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@on_ranks(2, 3)
def test_a_bucket_costs_one_round_and_no_memory():
    """Neither Python nor torch keeps any in later steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    optimizer = _wrap(model, bucket_bytes=2048)
    batch = torch.randn(4, 16)

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(batch).sum().backward()
        with torch.no_grad():
            optimizer.step()

    for _ in range(3):
        step()
    buckets = len(_flats(optimizer))
    assert buckets == 12
    before = aiacc.stats()
    for _ in range(20):
        step()
    after = aiacc.stats()
    assert after["tensors"] - before["tensors"] == 20 * buckets
    assert after["rounds"] - before["rounds"] <= 20 * buckets

    model(batch).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        optimizer.synchronize()
    assert [event.name for event in profiled.events() if event.cpu_memory_usage > 0] == []
    with optimizer.skip_synchronize():
        optimizer.step()

    ours, changes = [tracemalloc.Filter(True, "*/aiacc/torch/*")], []
    tracemalloc.start()
    step()
    for _ in range(3):  # once, Python 3.10 keeps some for each function that it calls 1024 times
        gc.collect()  # which also frees what Python has ready for new tuples and lists
        before = tracemalloc.take_snapshot().filter_traces(ours)
        for _ in range(20):
            step()
        gc.collect()
        after = tracemalloc.take_snapshot().filter_traces(ours)
        changes.append(after.compare_to(before, "lineno"))
    tracemalloc.stop()
    # A kept handle alone would be 28 bytes per bucket and step.
    assert min(sum(line.size_diff for line in window) for window in changes) < 20 * buckets, changes


# --- groups

_sgd = partial(torch.optim.SGD, lr=0.1)


def _layers():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(3, 3).double() for _ in range(4))


def _of_some_layers(model, rank, batch):
    """Every rank leaves out another layer."""
    generator = torch.Generator().manual_seed(100 * batch + rank)
    rows = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    used = [layer for number, layer in enumerate(model) if number != (rank + batch) % 4]
    return sum(layer(rows).pow(2).mean() for layer in used)


@on_ranks(2, 3)
def test_groups_in_the_order_of_the_first_rank():
    expected = train(alone(Recipe(_layers, _sgd, _of_some_layers)), range(4)).model
    for choose in (
        lambda model: 1,
        lambda model: 3,
        lambda model: 100,
        lambda model: [list(model[0].parameters()), [model[3].bias, model[1].weight]],
    ):
        model = _layers()
        parameters = list(model.parameters())
        if hvd.rank() == 1:  # the first rank's order counts
            parameters.reverse()
        optimizer = distributed(model, _sgd(parameters), groups=choose(model))
        train(Together(model, optimizer, _of_some_layers), range(4))
        check_learned(model, expected, exactly=False)


@on_ranks(2)
def test_parameters_that_were_always_frozen_are_in_no_group():
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    common = nn.Parameter(torch.ones(2))
    named = [("common", common), (f"of_rank_{min(hvd.rank(), 1)}", weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([common, weight], 0.1), named, groups=1)
    common.sum().backward()
    optimizer.step()
    torch.testing.assert_close(common.detach(), torch.full((2,), 0.9))


# --- the reducer below

KINDS = [{}, {"groups": 2}, {"gradient_as_bucket_view": True, "bucket_bytes": 256}]


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def _backward(model):
    """Gradients of this rank that are whole numbers of the rank, so that averages are exact."""
    for parameter in model.parameters():
        parameter.grad = None
    sum(parameter.sum() * (hvd.rank() + 1) for parameter in model.parameters()).backward()


def _check(model):
    for parameter in model.parameters():
        assert parameter.grad.eq((hvd.size() + 1) / 2).all()


@on_ranks(2)
def test_an_operation_is_prepared_once():
    prepare = _core.prepare = mock.Mock(wraps=_core.prepare)
    for options in KINDS:
        model = _net()
        optimizer = distributed(model, torch.optim.SGD(model.parameters(), 0.1), **options)
        by_step = []
        for _ in range(4):
            prepare.reset_mock()
            _backward(model)
            optimizer.synchronize()
            prepared = [call.args[2] for call in prepare.mock_calls]
            by_step.append([name for name in prepared if "weight" in name or "bias" in name])
            _check(model)
        names = [name for name, _ in model.named_parameters()]
        assert sorted(by_step[0]) == sorted(names)
        # Groups and buckets come with the second step, which shows that views do not pay here.
        buckets = len(optimizer.buckets) if options else 0
        expected = [buckets, buckets if "gradient_as_bucket_view" in options else 0, 0]
        assert [len(names) for names in by_step[1:]] == expected


@on_ranks(2, each={"options": [{}, {"groups": [[]]}, {"groups": 1}]})
def test_parameters_may_get_another_shape(options):
    memory = torch.zeros(64)
    parameter, other = nn.Parameter(torch.ones(48)), nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter, other], 0.1), **options)
    for count in (48, 48, 16, 32):
        parameter.data = torch.ones(count)
        memory.fill_(-1)
        parameter.grad = other.grad = None
        # Autograd keeps the very tensor, which is a part of a larger one.
        torch.autograd.backward(
            [parameter, other], [memory[:count].fill_(hvd.rank() + 1.0), torch.ones(3)]
        )
        optimizer.synchronize()
        assert parameter.grad.eq((hvd.size() + 1) / 2).all()
        assert memory[count:].eq(-1).all()  # what lies behind the gradient


def _neighbours(length, gradients):
    """Runs of gradients as they come, but the last one by itself."""
    count = len(gradients) - 1
    return [range(begin, min(begin + length, count)) for begin in range(0, count, length)]


def _reducer_of(model, divide, storage):
    options = ReductionOptions(planner=Planner(divide, argument="mine"), storage=storage)
    reducer = GradientReducer(list(model.named_parameters()), options, 1)
    assert [len(bucket.members) for bucket in reducer.buckets] == [1] * 8
    return reducer


_STORAGES = [own_memory, flat_buckets]


@on_ranks(2, 3, each={"storage": _STORAGES, "plan": [(3, [3, 3, 1, 1]), (7, [7, 1])]})
def test_plans_from_outside(storage, plan):
    length, sizes = plan
    model = _net()
    reducer = _reducer_of(model, partial(_neighbours, length), storage)
    for step in range(3):
        _backward(model)
        reducer.finish()
        _check(model)
        names = [name for name, _ in reducer.named]
        members = [[names[index] for index in bucket.members] for bucket in reducer.buckets]
        assert [len(bucket) for bucket in members] == sizes
        if step == 0:  # What is in no bucket of the plan has no flat memory either.
            flat = [bucket.flat is not None for bucket in reducer.buckets]
            assert flat == [storage is flat_buckets] * (len(members) - 1) + [False]
    assert hvd.allgather_object(members) == [members] * hvd.size()
    reducer.detach()


@on_ranks(2, each={"storage": _STORAGES})
def test_a_plan_that_is_none_is_an_error_and_gradients_go_by_themselves(storage):
    model = _net()
    reducer = _reducer_of(model, lambda gradients: [[0, 1], [1]], storage)
    _backward(model)
    with pytest.raises(ValueError, match=r"mine: .*at most once"):
        reducer.finish()
    _check(model)
    _backward(model)
    reducer.finish()
    _check(model)
    assert [len(bucket.members) for bucket in reducer.buckets] == [1] * 8
    reducer.detach()


def _fails_half_way(kind):
    """A backward pass that fails, and whose optimizer is given up; weak references to its memory.

    Nothing is left of it but what the core has to know.
    """
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    policy = Policy(parse("topk:density=0.1"), least_elements=1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        [(f"{kind}.{name}", parameter) for name, parameter in model.named_parameters()],
        compression=policy if kind == "residuals" else "none",
    )
    model[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 8)).sum().backward()
    kept = list(optimizer.feedback.residuals.values()) if kind == "residuals" else []
    return [weakref.ref(tensor) for tensor in [model[1].weight.grad, *kept]]


@on_ranks(2)
def test_memory_of_an_optimizer_that_is_given_up_lives_until_the_core_is_done():
    model = _net()
    optimizer = distributed(model, torch.optim.SGD(model.parameters(), 0.1))
    for kind in ("gradients", "residuals"):
        if hvd.rank() == 0:
            memory = _fails_half_way(kind)
            gc.collect()
            # The other rank comes later: this is still to be written to.
            assert all(reference() is not None for reference in memory), kind
        hvd.barrier()
        if hvd.rank() == 1:
            memory = _fails_half_way(kind)
        for _ in range(2):  # what is done in the first step is forgotten in the second
            _backward(model)
            optimizer.step()
        gc.collect()
        assert all(reference() is None for reference in memory), kind
        hvd.barrier()
