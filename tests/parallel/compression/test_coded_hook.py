"""DistributedDataParallel whose buckets travel coded."""

import copy
import dataclasses
import gc

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21, Momentum, Residual
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, coding_optimizer, run_over_tcp
from tests.support.process_group import leave


def _loss_after(compression, steps=60):
    name = str(compression).partition(":")[0]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    model.register_comm_hook(hvd.HookState(compression=compression), hvd.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(hvd.rank())) / 8
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().sum()
        loss.backward()
        optimizer.step()
    check_same(model.module.weight.detach().flatten())
    return float(hvd.allreduce(loss.detach(), name=f"loss.{name}"))


_POLICY = Policy(
    parse("topk:density=0.01"), least_elements=64, dense_steps=2, stages=2, stage_steps=2
)


def _as_optimizers_do():
    """One bucket with the schedule and the feedback of an optimizer: its gradients, bit for bit."""
    for feedback in (Residual(0.9), Momentum(0.5), EF21()):
        policy = dataclasses.replace(_POLICY, feedback=feedback)
        torch.manual_seed(0)
        model = nn.Linear(40, 30, bias=False)
        theirs = DistributedDataParallel(copy.deepcopy(model))
        state = hvd.HookState(compression=policy, named_parameters=theirs.named_parameters())
        theirs.register_comm_hook(state, hvd.allreduce_hook)
        optimizer = coding_optimizer(model, policy, op=hvd.Average)
        sent = []
        for step in range(8):
            theirs.zero_grad()
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + hvd.rank())
            inputs = torch.randn(16, 40, generator=generator)
            theirs(inputs).pow(3).mean().backward()
            model(inputs).pow(3).mean().backward()
            optimizer.step()
            found = theirs.module.weight.grad
            assert torch.equal(found, model.weight.grad), (feedback, step)
            sent.append(int((found != 0).sum()))
        if not isinstance(feedback, EF21):
            assert sent[:2] == [1200] * 2, "dense"
            assert 120 <= sent[2] <= 240
            assert sent[2] > sent[4] > sent[7]
            assert 12 <= sent[7] <= 24
        (name,) = state.feedback.residuals
        assert name == "module.weight"
        assert torch.equal(state.feedback.residuals[name], optimizer.feedback.residuals["weight"])
        assert state.feedback.residuals[name].any()


def _rebuilt():
    """DDP forms its buckets anew after the first step; what is kept moves with its gradients.

    So it does if the module is wrapped once more, for which the first buckets come back.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 40), nn.Linear(40, 20))
    local = copy.deepcopy(net)
    state = hvd.HookState(compression="topk:density=0.05")
    left = [torch.zeros(p.shape).double() for p in net.parameters()]
    for step in range(5):
        if step in (0, 3):
            model = DistributedDataParallel(net, bucket_cap_mb=0.005)
            model.register_comm_hook(state, hvd.allreduce_hook)
        model.zero_grad()
        for rank in range(hvd.size()):
            inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))
            if rank == hvd.rank():
                model(inputs).pow(2).mean().backward()
            local.zero_grad()
            local(inputs).pow(2).mean().backward()
            for total, parameter in zip(left, local.parameters(), strict=True):
                total += parameter.grad
        for total, parameter in zip(left, net.parameters(), strict=True):
            total -= hvd.size() * parameter.grad
    names = {parameter: state._name(parameter) for parameter in net.parameters()}
    coded = [name for members, *_ in state._codecs.values() for name in members]
    assert sorted(coded) == sorted(names.values())  # buckets that are gone keep no memory
    for total, parameter in zip(left, net.parameters(), strict=True):
        kept = state.feedback.residuals[names[parameter]].double()
        kept = hvd.allreduce(kept, op=hvd.Sum, name=f"kept.{names[parameter]}")
        torch.testing.assert_close(kept, total, rtol=0, atol=1e-5)
        assert kept.any()


class _Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))

    def forward(self, inputs, which):
        return self.branches[which](inputs)


def _unused(feedback):
    """What was kept of a branch waits while no rank uses it: nobody would get it then."""
    torch.manual_seed(0)
    net = _Branches()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    policy = Policy(parse("topk:density=0.05"), feedback=feedback, least_elements=1)
    state = hvd.HookState(compression=policy, named_parameters=net.named_parameters())
    model.register_comm_hook(state, hvd.allreduce_hook)

    def step(which):
        model.zero_grad()
        model(torch.randn(8, 40), which).pow(2).mean().backward()

    def kept_of_the_first():
        kept = state.feedback.state_dict()["kept"]
        return {kind: of["branches.0.weight"] for kind, of in kept.items() if of}

    torch.manual_seed(hvd.rank())
    for which in (0, 1, 0):
        step(which)
    before = kept_of_the_first()
    for _ in range(2):
        step(1)
    torch.testing.assert_close(kept_of_the_first(), before, rtol=0, atol=0)
    # DDP does not have a gradient that is asked for by itself; what is loaded waits, too.
    torch.autograd.grad(net(torch.randn(8, 40), 0).sum(), list(net.branches[0].parameters()))
    state.feedback.load_state_dict(state.feedback.state_dict())
    step(1)
    torch.testing.assert_close(kept_of_the_first(), before, rtol=0, atol=0)
    copied = copy.deepcopy(state)
    assert not copied._watches
    step(hvd.rank())
    for name, parameter in net.named_parameters():
        everyones = hvd.allgather(parameter.grad.reshape(1, -1), name=name)
        assert torch.equal(everyones, everyones[:1].expand_as(everyones))


def _thawed():
    """A parameter that is trained later than DDP was made has its residuals sent, too."""
    torch.manual_seed(0)
    net = _Branches()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    state = hvd.HookState(compression="topk:density=0.05")
    model.register_comm_hook(state, hvd.allreduce_hook)
    inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(1))
    weight = net.branches[0].weight
    weight.requires_grad_(False)
    total = torch.zeros(weight.shape)
    for number in range(40):
        model.zero_grad()
        model(inputs, 0).pow(2).mean().backward()
        if number == 0:
            weight.requires_grad_(True)
        else:
            total += weight.grad
    assert (total != 0).float().mean() > 0.6
    assert weight._post_accumulate_grad_hooks
    del model, state
    gc.collect()
    assert not weight._post_accumulate_grad_hooks


def _different():
    """What travels is of one form, and yet what ranks make of it would differ."""
    model = DistributedDataParallel(nn.Linear(40, 40))
    policy = Policy(parse("topk"), feedback=(EF21(), Residual())[hvd.rank()], least_elements=1)
    model.register_comm_hook(hvd.HookState(compression=policy), hvd.allreduce_hook)
    with pytest.raises(ValueError, match="the ranks were given different"):
        model(torch.ones(1, 40)).sum().backward()


def _scaled(overflow):
    """Of four steps the second overflows on one rank, or does not take place."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 40))
    # One bucket in every step: what is kept is in the same order.
    model = DistributedDataParallel(net, bucket_cap_mb=100)
    state = hvd.HookState(compression="topk:density=0.05")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    state.feedback.follow(scaler)
    model.register_comm_hook(state, hvd.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        if step == 1 and not overflow:
            scaler.update(512.0)
            continue
        optimizer.zero_grad()
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(9 * step + hvd.rank()))
        loss = model(inputs).pow(2).mean() * (1e38 if (step, hvd.rank()) == (1, 1) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    kept = state.feedback.state_dict()["kept"]["residual"]
    assert scaler.get_scale() == 512
    return torch.cat([p.detach().reshape(-1) for p in (*net.parameters(), *kept.values())])


def _hooks(folder):
    hvd.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=hvd.rank(), world_size=hvd.size()
    )
    assert torch.equal(*(_scaled(overflow) for overflow in (True, False)))
    _as_optimizers_do()
    _rebuilt()
    _different()
    _thawed()
    _unused(Residual())
    _unused(Momentum())
    first = _loss_after("none", steps=1)
    dense = _loss_after("bf16")
    assert dense < first / 10
    # What the codes lose of gradients that get smaller is a part of them.
    assert _loss_after("int8") < dense * 1.1
    assert _loss_after("mstopk:density=0.1") < first / 10
    with pytest.raises(ValueError, match="int9"):
        hvd.HookState(compression="int9")
    leave()


def test_hooks(tmp_path):
    run_over_tcp(2, _hooks, str(tmp_path))


def _alone(folder):
    hvd.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=0, world_size=1
    )
    assert _loss_after("mstopk:density=0.01", steps=5) == _loss_after("none", steps=5)
    leave()


def test_one_rank_alone_codes_nothing(tmp_path):
    run_over_tcp(1, _alone, str(tmp_path))
