"""Training with the decoupled schedule is that with the other one."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc import _core
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import (
    batch,
    begin,
    check_equal,
    gather_late,
    loss,
    net,
    train,
    wrap,
)
from tests.support.ranks import run_ranks

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


def _two_groups(make, model):
    named = list(model.named_parameters())
    decayed = [p for name, p in named if name.endswith("weight")]
    others = [p for name, p in named if name.endswith("bias")]
    optimizer = make([{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 0.02}])
    assert len(optimizer.param_groups) == 2
    return optimizer


def _trains_alike(name):
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, _two_groups(OPTIMIZERS[name], model), schedule)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(5):
            train(model, optimizer, [step])
            scheduler.step()
    optimizer.flush()
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_the_other_schedule(name):
    run_ranks(2, _trains_alike, name)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_training_is_that_of_the_other_schedule_with_more_ranks(name):
    run_ranks(4, _trains_alike, name)


def _options(arguments, make_plan):
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    passes = arguments.get("backward_passes_per_step", 1)
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        more = {}
        if make_plan and schedule == "decoupled":
            names = [name for name, _ in model.named_parameters()][::-1]
            more = {"plan": Plan("mine", (tuple(names[:2]), tuple(names[2:])), schedule)}
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer = wrap(model, sgd, schedule, **arguments, **more)
        for step in range(4):
            optimizer.zero_grad()
            for number in range(passes):
                loss(model, 10 * step + number, hvd.rank()).backward()
            optimizer.step()
    optimizer.flush()
    assert len(optimizer._exchange.buckets) == (2 if make_plan else 3)
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize(
    "arguments",
    [
        {"op": hvd.Sum},
        {"gradient_predivide_factor": 2.0},
        {"backward_passes_per_step": 3},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_options_of_the_reduction(arguments):
    run_ranks(2, _options, arguments, False)


def test_the_buckets_of_a_plan():
    run_ranks(2, _options, {}, True)


def _penalty_of_gradients(passes):
    """The loss of the second pass has the gradients of the first one in it."""
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net(), net()
    options = {}, {"gradient_as_bucket_view": True}, {"schedule": "decoupled"}
    for model, more in zip(models, options, strict=True):
        arguments = {"schedule": "all_reduce", "backward_passes_per_step": passes, **more}
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), **arguments)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step == 2)
            loss(model, step, hvd.rank()).backward(create_graph=True)
            penalty = sum(parameter.grad.pow(2).sum() for parameter in model.parameters())
            (loss(model, 10 + step, hvd.rank()) + penalty).backward()
            optimizer.step()
    optimizer.flush()
    check_equal(models[1], models[0])
    check_equal(models[2], models[0])
    plain = net()
    sgd = torch.optim.SGD(plain.parameters(), 0.1)
    for step in range(4):
        sgd.zero_grad()
        for rank in range(2):
            own = loss(plain, step, rank)
            gradients = torch.autograd.grad(own, list(plain.parameters()), create_graph=True)
            penalty = sum(gradient.pow(2).sum() for gradient in gradients)
            ((own + loss(plain, 10 + step, rank) + penalty) / 2).backward()
        sgd.step()
    for one, other in zip(models[0].parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    hvd.shutdown()


@pytest.mark.parametrize("passes", [2, 3])
def test_gradients_that_the_next_pass_uses(passes):
    run_ranks(2, _penalty_of_gradients, passes)


class _Picture(nn.Module):
    """Memory formats, a scalar, two dtypes, a part that is not always used, a frozen one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.wide = nn.Linear(6, 4).double()
        self.rare = nn.Linear(4, 4).double()
        self.frozen = nn.Linear(4, 4).double().requires_grad_(False)

    def forward(self, images, use_rare):
        hidden = self.norm(self.conv(images)).mean((2, 3)) * self.scale
        wide = self.wide(hidden.double())
        return self.frozen(self.rare(wide) if use_rare else wide)


def _pictures():
    torch.set_num_threads(1)
    hvd.init()
    models = _Picture(), _Picture()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        adam = torch.optim.AdamW(model.parameters(), 0.01)
        optimizer = wrap(model, adam, schedule, bucket_bytes=300)

        def on(model, step, rank):
            images = batch(step, rank, 3 * 6 * 6).reshape(8, 3, 6, 6)
            # On one rank, on none, on all.
            return model(images, step == 1 or (step == 2 and rank == 0)).pow(2).mean()

        train(model, optimizer, range(4), loss=on)
    optimizer.flush()
    assert models[1].conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert models[1].frozen.weight.untyped_storage().nbytes() == 4 * 4 * 8
    check_equal(models[1].double(), models[0].double())
    hvd.shutdown()


def test_formats_dtypes_unused_and_frozen_parameters():
    run_ranks(2, _pictures)


def _frozen_later(set_to_none):
    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad(set_to_none)
            loss(model, step, hvd.rank()).backward()
            optimizer.step()

    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        optimizer = wrap(model, sgd, schedule)
        train(model, optimizer, range(2))
        model[2].requires_grad_(False)
        train(model, optimizer, range(2, 4))
        model[2].requires_grad_(True)
        train(model, optimizer, range(4, 5))
    optimizer.flush()
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_that_are_frozen_for_a_while(set_to_none):
    """With a gradient of zeros torch's optimizers go on with momentum and decay."""
    run_ranks(2, _frozen_later, set_to_none)


def _dropped(synchronizes):
    """A gradient that somebody drops leaves its parameter as it is, momentum and decay or not."""
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()

    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        optimizer = wrap(model, sgd, schedule)
        for step in range(6):
            optimizer.zero_grad()
            loss(model, step, hvd.rank()).backward()
            if synchronizes:
                optimizer.synchronize()
            if step == 4:
                model.zero_grad()
            if step < 3:
                model[2].weight.grad = None
            with optimizer.skip_synchronize() if synchronizes else nullcontext():
                optimizer.step()
            changed = not torch.equal(model[2].weight, net()[2].weight)
            assert changed == (step >= 3)
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("synchronizes", [False, True])
def test_gradients_that_are_dropped(synchronizes):
    run_ranks(2, _dropped, synchronizes)


def _clears_in_place():
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer = wrap(model, sgd, schedule)
        for step in range(3):
            loss(model, step, hvd.rank()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            assert not any(parameter.grad.any() for parameter in model.parameters())
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_gradients_that_are_cleared_in_place():
    run_ranks(2, _clears_in_place)


def _clips(norm_type, max_norm):
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models, norms = (net(), net()), ([], [])

    def plain(optimizer):
        optimizer.synchronize()
        parameters = models[0].parameters()
        norms[0].append(torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))

    def ours(optimizer):
        norms[1].append(optimizer.clip_grad_norm_(max_norm, norm_type))

    optimizer = wrap(models[0], torch.optim.SGD(models[0].parameters(), 0.1), "all_reduce")
    for step in range(3):
        optimizer.zero_grad()
        loss(models[0], step, hvd.rank()).backward()
        plain(optimizer)
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer = wrap(models[1], torch.optim.SGD(models[1].parameters(), 0.1))
    train(models[1], optimizer, range(3), ours)
    optimizer.flush()
    torch.testing.assert_close(torch.stack(norms[1]).float(), torch.stack(norms[0]))
    for one, other in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    hvd.shutdown()


@pytest.mark.parametrize(("norm_type", "max_norm"), [(2.0, 0.05), (float("inf"), 0.01), (2, 1e6)])
def test_clipping_by_the_norm_of_all_gradients(norm_type, max_norm):
    run_ranks(2, _clips, norm_type, max_norm)


def _one_rank():
    hvd.init()
    models = net(), net()
    plain = torch.optim.Adam(models[0].parameters(), 0.01)
    optimizer = wrap(models[1], torch.optim.Adam(models[1].parameters(), 0.01))
    for step in range(3):
        plain.zero_grad()
        loss(models[0], step, 0).backward()
        norm = torch.nn.utils.clip_grad_norm_(models[0].parameters(), 0.1)
        plain.step()
        optimizer.zero_grad()
        loss(models[1], step, 0).backward()
        assert optimizer.clip_grad_norm_(0.1) == norm
        optimizer.step()
        optimizer.flush()
    check_equal(models[1], models[0])
    optimizer.consolidate_state_dict()
    found, expected = optimizer.state_dict(), plain.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    hvd.shutdown()


def test_one_rank_has_a_plain_optimizer():
    run_ranks(1, _one_rank)


def _process_set():
    torch.set_num_threads(1)
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer = wrap(model, sgd, schedule, process_set=pair)
        train(model, optimizer, range(3))
        norm = optimizer.clip_grad_norm_(1.0) if schedule == "decoupled" else None
    optimizer.flush()
    optimizer.consolidate_state_dict(None)
    assert len(optimizer.state_dict()["state"]) == 6
    assert norm is not None
    for one, other in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert torch.equal(one, other)
    hvd.barrier()
    hvd.shutdown()


def test_ranks_of_a_process_set_and_others():
    run_ranks(3, _process_set)


def _closure():
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        for step in range(3):

            def closure(model=model, optimizer=optimizer, step=step):
                optimizer.zero_grad()
                value = loss(model, step, hvd.rank())
                value.backward()
                return value

            assert optimizer.step(closure).requires_grad
    optimizer.flush()
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_closures():
    run_ranks(2, _closure)


def _scaler():
    """A scaler skips the step on every rank if one rank's part of the gradients is not finite."""
    model, optimizer = begin()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    scales, changed = [], []
    for step in range(3):
        optimizer.zero_grad()
        value = loss(model, step, hvd.rank())
        if step == 1 and hvd.rank() == 1:  # one element of the first bucket, in rank 0's shard
            value = value + model[0].weight[0, 0] * float("inf")
        before = model[4].weight.detach().clone()
        scaler.scale(value).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        optimizer.flush()
        scales.append(scaler.get_scale())
        changed.append(not torch.equal(before, model[4].weight))
    assert (scales, changed) == ([4.0, 2.0, 2.0], [True, False, True])
    hvd.shutdown()


def _scaled_without_more(schedule):
    """As in a script for DistributedDataParallel; also by optimizers that unscale themselves."""
    torch.set_num_threads(1)
    hvd.init()
    for fused in (False, True):
        model, alone = net(), net()
        expected = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=fused)
        optimizer = wrap(model, sgd, schedule)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            factor = float("inf") if (step, hvd.rank()) == (2, 1) else 1.0
            scaler.scale(loss(model, step, hvd.rank()) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            if step != 2:
                expected.zero_grad()
                (sum(loss(alone, step, rank) for rank in range(hvd.size())) / hvd.size()).backward()
                expected.step()
        assert scaler.get_scale() == 4.0
        for found, right in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(found, right)
    hvd.shutdown()


@pytest.mark.parametrize("schedule", ["all_reduce", "decoupled"])
def test_a_scaler_needs_nothing_more(schedule):
    run_ranks(2, _scaled_without_more, schedule)


def test_scalers_of_all_ranks_agree():
    run_ranks(2, _scaler)


def _tiny(name):
    """More ranks than parameters have elements: some have no part of them."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        hvd.broadcast_parameters(model.state_dict(), 0)
    optimizers = []
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizers.append(wrap(model, OPTIMIZERS[name](model.parameters()), schedule))
    scales = []
    for model, optimizer in zip(models, optimizers, strict=True):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        for step in range(4):
            optimizer.zero_grad()
            value = model(batch(step, hvd.rank(), 2)).pow(2).mean()
            value = value * (float("inf") if step == 1 and hvd.rank() == 1 else 1)
            scaler.scale(value).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [2.0, 2.0], scales
    check_equal(models[1], models[0])
    optimizer.consolidate_state_dict(None)
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["params"] == [0, 1]
    assert set(saved["state"]) <= {0, 1}
    optimizer.load_state_dict(saved)
    model(batch(9, hvd.rank(), 2)).sum().backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()
    hvd.shutdown()
    return len(optimizer._shards._segments)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_ranks_that_have_no_part_of_the_parameters(name):
    assert 0 in run_ranks(3, _tiny, name)


def _leaves_with_its_last_gradient():
    """Who waits for nothing before the step does not let its last bucket linger until then."""
    model, optimizer = begin()
    train(model, optimizer, range(2))
    flush, calls = _core.flush, []
    _core.flush = lambda: calls.append(optimizer._exchange.under_way) or flush()
    optimizer.zero_grad()
    loss(model, 2, hvd.rank()).backward()
    assert calls == [True]
    optimizer.step()
    _core.flush = flush
    hvd.shutdown()


def test_the_last_bucket_leaves_in_the_backward_pass():
    run_ranks(2, _leaves_with_its_last_gradient)
