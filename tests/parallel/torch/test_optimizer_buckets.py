"""Gradients as views of persistent buckets, and groups of gradients.

That training with them is the same is in test_optimizer_situations.py.
"""

import gc
import tracemalloc
from functools import partial

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aiacc
import aiacc.torch as hvd
from tests.parallel.torch.test_optimizer_situations import Net, loss, momentum
from tests.support.jobs import on_ranks
from tests.support.learning.training import Alone, Recipe, Together, compare, distributed, train

NET = Recipe(Net, momentum, loss)
VIEWS = {"gradient_as_bucket_view": True}


def _wrap(model, **options):
    return distributed(model, momentum(model.parameters()), **VIEWS, **options)


def _flats(optimizer):
    return [bucket.flat for bucket in optimizer._reducer.buckets if bucket.flat is not None]


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


@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
@on_ranks(2, 3)
def test_gradients_stay_unless_most_are_dropped(bucket_bytes):
    options = {"bucket_bytes": bucket_bytes, **VIEWS}
    compare(partial(_stay, bucket_bytes), NET, **options)
    for droppers in range(1, hvd.size() + 1):
        compare(partial(_given_up, droppers), NET, **options)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("which", [0, 1])
@on_ranks(2)
def test_a_gradient_that_another_hook_drops_on_some_ranks_counts_as_zeros(which, views):
    """The hook was there before ours."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    dropped = model[which].weight
    drops = [False] * hvd.size()
    dropped.register_post_accumulate_grad_hook(
        lambda parameter: setattr(parameter, "grad", None) if drops[hvd.rank()] else None
    )
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = distributed(model, sgd, op=hvd.Sum, gradient_as_bucket_view=views)
    for step in range(6):
        drops[:] = [step == 3] + [step != 3] * (hvd.size() - 1)
        optimizer.zero_grad()
        model.zero_grad()
        model(torch.full((1, 3), step + 1.0)).sum().backward()
        value = model(torch.full((1, 3), step + 1.0)).sum()
        (expected,) = torch.autograd.grad(value, dropped)
        optimizer.step()
        if drops[hvd.rank()]:
            assert dropped.grad is None
        else:
            torch.testing.assert_close(dropped.grad, (hvd.size() - sum(drops)) * expected)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)


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

    gc.collect()  # which also frees what Python has ready for new tuples and lists
    tracemalloc.start()
    step()
    gc.collect()
    before = tracemalloc.take_snapshot()
    for _ in range(20):
        step()
    gc.collect()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = [tracemalloc.Filter(True, "*/aiacc/torch/*")]
    changes = after.filter_traces(ours).compare_to(before.filter_traces(ours), "lineno")
    # A kept handle alone would be 28 bytes per bucket and step.
    assert sum(change.size_diff for change in changes) < 20 * buckets, changes


# --- groups


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
    alone = Alone(model := _layers(), torch.optim.SGD(model.parameters(), 0.1), _of_some_layers)
    train(alone, range(4))
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
        optimizer = distributed(model, torch.optim.SGD(parameters, 0.1), groups=choose(model))
        train(Together(model, optimizer, _of_some_layers), range(4))
        for found, expected in zip(model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(found, expected)


@on_ranks(2)
def test_parameters_that_were_always_frozen_are_in_no_group():
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    common = nn.Parameter(torch.ones(2))
    named = [("common", common), (f"of_rank_{min(hvd.rank(), 1)}", weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([common, weight], 0.1), named, groups=1)
    common.sum().backward()
    optimizer.step()
    torch.testing.assert_close(common.detach(), torch.full((2,), 0.9))
