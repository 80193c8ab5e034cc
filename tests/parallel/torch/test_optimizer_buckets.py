"""Gradients as views of persistent buckets."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aiacc
import aiacc.torch as hvd
from tests.support.ranks import run_ranks
from tests.support.training import check_parameters, train_alone


class _Net(nn.Module):
    """Parameters of both memory layouts and of two dtypes, and a part that is not always used."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
        self.used = nn.Linear(4, 3).double()
        self.sometimes = nn.Linear(4, 3).double()
        self.single = nn.Linear(3, 3)

    def forward(self, x, sometimes):
        hidden = self.conv(x.to(memory_format=torch.channels_last)).mean((2, 3))
        out = self.used(hidden) + (self.sometimes(hidden) if sometimes else 0)
        return self.single(out.float()).double() + out


def _net():
    torch.manual_seed(0)
    return _Net()


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randn(4, 3, 5, 5, generator=generator, dtype=torch.float64)
    return model(batch, rank == hvd.size() - 1 and step % 2 == 0).pow(2).mean()


def _wrap(model, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        model.named_parameters(),
        gradient_as_bucket_view=True,
        **options,
    )


def _reference(steps, **options):
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return train_alone(model, optimizer, _loss, steps, **options)


def _flats(optimizer):
    return [bucket.flat for bucket in optimizer._reducer.buckets if bucket.flat is not None]


def _lies_in_a_bucket(gradient, optimizer):
    begin = gradient.data_ptr()
    for flat in _flats(optimizer):
        end = flat.data_ptr() + flat.numel() * flat.element_size()
        if flat.data_ptr() <= begin < end:
            return True
    return False


def _views(bucket_bytes):
    model = _net()
    optimizer = _wrap(model, bucket_bytes=bucket_bytes)
    places = None
    for step in range(5):
        optimizer.zero_grad(set_to_none=False)
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(_lies_in_a_bucket(gradient, optimizer) for gradient in gradients)
        assert places in (None, [gradient.data_ptr() for gradient in gradients])
        places = [gradient.data_ptr() for gradient in gradients]
        assert model.conv.weight.grad.stride() == model.conv.weight.stride()
    buckets = len(_flats(optimizer))
    assert buckets == 2 if bucket_bytes > 10_000 else buckets > 2
    check_parameters(model, _reference(5), rtol=1e-6, atol=1e-6)


def _given_up(bucket_bytes, droppers):
    """Ranks below ``droppers`` drop their gradients before each step, the others zero them."""
    model = _net()
    optimizer = _wrap(model, bucket_bytes=bucket_bytes)
    drops = hvd.rank() < droppers
    # Those on a GPU always do: a copy costs little there.
    stay = 2 * droppers <= hvd.size() or not model.conv.weight.is_cpu
    plans = []
    for step in range(5):
        optimizer.zero_grad(set_to_none=drops)
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
        plans.append([bucket.members for bucket in optimizer._reducer.buckets])
        gradients = [parameter.grad for parameter in model.parameters()]
        within = all(_lies_in_a_bucket(gradient, optimizer) for gradient in gradients)
        assert within == bool(_flats(optimizer)) == (step == 0 or stay)
    # What is reduced as one operation does not depend on where it is.
    assert plans[1:] == [plans[0]] * 4
    check_parameters(model, _reference(5), rtol=1e-6, atol=1e-6)
    if drops and not stay:  # nor does anybody hold the memory that was given up
        assert [g.untyped_storage().nbytes() for g in gradients] == [g.nbytes for g in gradients]


def _dropped_by_a_hook(which, views):
    """A hook that was there before ours drops a gradient, on some ranks."""
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    dropped = model[which].weight
    drops = [False] * hvd.size()
    dropped.register_post_accumulate_grad_hook(
        lambda parameter: setattr(parameter, "grad", None) if drops[hvd.rank()] else None
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        op=hvd.Sum,
        gradient_as_bucket_view=views,
    )
    for step in range(6):
        drops[:] = [step == 3] + [step != 3] * (hvd.size() - 1)
        optimizer.zero_grad()
        model.zero_grad()
        model(torch.full((1, 3), step + 1.0)).sum().backward()
        loss = model(torch.full((1, 3), step + 1.0)).sum()
        (expected,) = torch.autograd.grad(loss, dropped)
        optimizer.step()
        givers = hvd.size() - sum(drops)
        if drops[hvd.rank()]:
            assert dropped.grad is None
        else:
            torch.testing.assert_close(dropped.grad, givers * expected)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_what_another_hook_drops_counts_as_zeros(which, views):
    run_ranks(2, _dropped_by_a_hook, which, views)


def _joined_meanwhile():
    """A rank that is not there for the second step learns later what the ranks think of views."""
    model = _net()
    optimizer = _wrap(model)

    def step(number):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), number).backward()
        optimizer.step()

    for number in range(1 if hvd.rank() == 0 else 3):
        step(number)
        assert len(_flats(optimizer)) == 2
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    step(3)
    assert bool(_flats(optimizer)) != model.conv.weight.is_cpu
    step(4)
    values = hvd.allgather_object([p.grad.sum().item() for p in model.parameters()])
    assert values == values[:1] * hvd.size()


def _clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def _clipping_and_accumulation():
    model = _net()
    optimizer = _wrap(model, backward_passes_per_step=2, bucket_bytes=128)
    for step in range(4):
        optimizer.zero_grad()
        for index in range(2):
            _loss(model, hvd.rank(), 2 * step + index).backward()
        optimizer.synchronize()
        _clip(model)
        with optimizer.skip_synchronize():
            optimizer.step()
    check_parameters(model, _reference(4, passes=2, update=_clip), rtol=1e-6, atol=1e-6)


def _compressed():
    model = _net()
    optimizer = _wrap(model, compression=hvd.Compression.bf16)
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
    check_parameters(model, _reference(3), rtol=0.1, atol=0.02)


def _misuse():
    model = _net()
    optimizer = _wrap(model)
    for step in range(2):
        _loss(model, hvd.rank(), step).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match="backward_passes_per_step=1"):
            _loss(model, hvd.rank(), 0).backward()
        with pytest.raises(ValueError, match="written to"):  # by that pass, up to its error
            optimizer.step()
        optimizer.zero_grad()


def _disagreement():
    """Ranks whose models differ get the same error, and can go on without buckets."""
    layer = nn.Linear(2, 2, bias=False).to(torch.float32)
    if hvd.rank() == 0:  # the same gradients, but another order in memory
        layer.weight.data = layer.weight.data.t().contiguous().t()
    optimizer = _wrap(layer)
    for step in range(2):
        layer(torch.ones(1, 2)).sum().backward()
        if step == 0:
            with pytest.raises(ValueError, match="memory formats"):
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()


def _started_anew():
    model = _net()
    optimizer = _wrap(model)
    for step in range(4):
        if step == 2:
            hvd.shutdown()
            hvd.init()
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()
    check_parameters(model, _reference(4), rtol=1e-6, atol=1e-6)


def _use_in_every_way():
    torch.set_num_threads(1)
    hvd.init()
    for bucket_bytes in (64, 1 << 20):
        _views(bucket_bytes)
        for droppers in range(1, hvd.size() + 1):
            _given_up(bucket_bytes, droppers)
    _joined_meanwhile()
    _clipping_and_accumulation()
    _compressed()
    _misuse()
    _disagreement()
    _started_anew()
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_every_way_of_use(size):
    run_ranks(size, _use_in_every_way)


def _steady_state():
    torch.set_num_threads(1)
    hvd.init()
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
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_steady_state(size):
    """A bucket costs at most one round, and neither Python nor torch keeps new memory."""
    run_ranks(size, _steady_state)
