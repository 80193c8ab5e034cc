"""What is kept with codecs when something goes wrong, or another way than usual."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21, Momentum, Residual
from aiacc.compression.policy import Policy
from aiacc.exceptions import MismatchError
from tests.support.coded import coding_optimizer, run_over_tcp
from tests.support.process_group import leave
from tests.support.ranks import run_ranks

_SIDE = 160
_TENTH = parse("mstopk:density=0.1")


def _matrix():
    model = nn.Linear(_SIDE, _SIDE, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model


def _step(model, optimizer, gradient=None):
    """One whose gradients are these, random ones if none are given."""
    optimizer.zero_grad()
    (model.weight * (torch.randn(_SIDE, _SIDE) if gradient is None else gradient)).sum().backward()
    optimizer.step()


def _norm(optimizer, kind="residual"):
    return sum(float(kept.norm()) for kept in optimizer.feedback.kept.tensors[kind].values())


# --- momentum


def _momentum_of_ones(codec, masking=True):
    """Of gradients of 1, and how far each step goes."""
    hvd.init()
    model = _matrix()
    policy = Policy(parse(codec), feedback=Momentum(0.5, masking=masking))
    optimizer = coding_optimizer(model, policy, lr=1.0, op=hvd.Average)
    went = []
    for _ in range(4):
        before = model.weight.detach().clone()
        _step(model, optimizer, 1.0)
        went.append(float((before - model.weight.detach()).mean()))
    return went


def test_what_travels_dense_has_momentum_too():
    for went in run_ranks(2, _momentum_of_ones, "mstopk:density=0.1"):  # on one host
        assert went == [1, 1.5, 1.75, 1.875]


def test_codecs_of_blocks_have_momentum_without_masking():
    for went in run_over_tcp(2, _momentum_of_ones, "int8", False):
        assert went == pytest.approx([1, 1.5, 1.75, 1.875], rel=0.01)


def _momentum_of_each_rank(steps, ranks):
    """Each rank's momentum is that of its own: what others send does not touch it."""
    hvd.init()
    model = _matrix()
    policy = Policy(parse("topk:density=0.1"), feedback=Momentum(0.5))
    optimizer = coding_optimizer(model, policy)
    # Of a rank only these elements have gradients: nothing is left of them in any step.
    own = torch.arange(_SIDE * _SIDE).view(_SIDE, _SIDE) % ranks == hvd.rank()
    gradient = torch.where(own, 1.0, 1e-3)
    for _ in range(steps):
        _step(model, optimizer, gradient)
    return (optimizer.feedback.kept.tensors["momentum"]["weight"] == 0).float().mean().item()


def test_momentum_begins_anew_where_this_rank_has_sent_and_nowhere_else():
    for zeros in run_over_tcp(4, _momentum_of_each_rank, 1, 4):
        assert zeros == pytest.approx(0.1, abs=1e-3)  # of four ranks with others each


def _alone():
    hvd.init()
    policy = Policy(_TENTH, feedback=Momentum(0.5))
    with pytest.warns(UserWarning, match="one rank alone reduces nothing, so there is no momentum"):
        coding_optimizer(_matrix(), policy)


def test_one_rank_alone_learns_that_it_has_no_momentum():
    run_ranks(1, _alone)


def _momentum_is_a_ranks_own():
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, Policy(_TENTH, feedback=Momentum(0.5)))
    _step(model, optimizer)
    optimizer.feedback.flush()
    _step(model, optimizer)
    assert _norm(optimizer) == 0
    state = hvd.broadcast_object(optimizer.feedback.state_dict(), 0)
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="residuals or momentum of rank 0 of 2"):
            optimizer.feedback.load_state_dict(state)


def test_momentum_of_another_rank_is_refused():
    run_over_tcp(2, _momentum_is_a_ranks_own)


# --- flushes


def _flush_with_a_newcomer(feedback):
    hvd.init()
    policy = Policy(_TENTH, feedback=feedback)
    model = _matrix()
    optimizer = coding_optimizer(model, policy)
    _step(model, optimizer)
    kept = _norm(optimizer)
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        optimizer = coding_optimizer(model, policy)
    optimizer.feedback.flush()
    _step(model, optimizer)
    assert kept > 0
    assert _norm(optimizer) == 0
    _step(model, optimizer)


@pytest.mark.parametrize("feedback", [Residual(), Momentum(0.5), EF21()], ids=str)
def test_a_flush_takes_those_along_that_have_nothing(feedback):
    run_over_tcp(2, _flush_with_a_newcomer, feedback)


def _flush_that_fails():
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, _TENTH)
    _step(model, optimizer)
    kept = _norm(optimizer)
    if hvd.rank() == 0:
        optimizer.feedback.flush()
    with pytest.raises(MismatchError):
        _step(model, optimizer)
    assert _norm(optimizer) == kept > 0


def test_a_flush_that_fails_loses_nothing():
    run_over_tcp(2, _flush_that_fails)


def _codec_that_keeps_nothing():
    """It goes on from a state of one that keeps something."""
    hvd.init()
    optimizer = coding_optimizer(model := _matrix(), _TENTH)
    _step(model, optimizer)
    state = optimizer.feedback.state_dict()
    optimizer = coding_optimizer(model := _matrix(), "int8")
    optimizer.feedback.load_state_dict(state)
    _step(model, optimizer, 1.0)
    left = hvd.allreduce(state["kept"]["residual"]["weight"], op=hvd.Sum)
    assert left.any()
    torch.testing.assert_close(model.weight.grad, left + hvd.size(), rtol=0, atol=1e-5)
    _step(model, optimizer, 1.0)
    assert _norm(optimizer) == 0


def test_a_codec_that_keeps_nothing_sends_what_another_has_kept():
    run_over_tcp(2, _codec_that_keeps_nothing)


# --- steps that fail, or are dropped


def _frozen_step_that_fails(feedback):
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, Policy(_TENTH, feedback=feedback))
    gradient = torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(hvd.rank()))
    _step(model, optimizer, gradient)
    kept = _norm(optimizer)
    frozen = isinstance(feedback, Residual)
    model.weight.requires_grad_(not frozen)
    optimizer.feedback.flushing = {"weight"} if hvd.rank() == 1 else set()  # the forms differ
    optimizer.zero_grad()
    if not frozen:
        (model.weight * 3 * gradient).sum().backward()
    with pytest.raises(MismatchError):
        optimizer.step()
    if frozen:
        assert _norm(optimizer) == kept > 0
        return
    _step(model, optimizer, gradient)  # dense, on all ranks: they know again
    total = hvd.allreduce(gradient, op=hvd.Sum)
    torch.testing.assert_close(model.weight.grad, total)
    return


@pytest.mark.parametrize("feedback", [Residual(), EF21()], ids=str)
def test_a_failed_step_takes_nothing_from_what_is_kept(feedback):
    run_over_tcp(2, _frozen_step_that_fails, feedback)


def _kept_of_a_step_that_fails(policy, freezes):
    model = _matrix()
    optimizer = coding_optimizer(model, policy)
    gradient = torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(hvd.rank()))
    _step(model, optimizer, gradient)
    before = optimizer.feedback.kept.copy()
    model.weight.requires_grad_(not freezes)
    optimizer.feedback.flushing = {"weight"} if hvd.rank() == 1 else set()  # the forms differ
    optimizer.zero_grad()
    if not freezes:
        (model.weight * gradient).sum().backward()
    with pytest.raises(MismatchError):
        optimizer.step()
    assert before["residual"]["weight"].any()
    for kind, of in before.items():
        for name, one in of.items():
            assert torch.equal(optimizer.feedback.kept.tensors[kind][name], one), (policy, kind)


def _kept_of_steps_that_fail():
    hvd.init()
    for policy in (
        Policy(_TENTH, feedback=Residual(beta=0.5)),
        Policy(_TENTH, feedback=Momentum(0.5)),
        Policy(parse("powersgd:rank=2"), feedback=Residual(beta=0.5)),
    ):
        for freezes in (False, True):
            _kept_of_a_step_that_fails(policy, freezes)


def test_a_failed_step_leaves_momentum_and_fading_residuals_as_they_were():
    run_over_tcp(2, _kept_of_steps_that_fail)


def _dropped():
    """Sums and residuals together are all gradients that were not dropped."""
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, _TENTH, lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    generator = torch.Generator().manual_seed(hvd.rank())
    total = torch.zeros(_SIDE, _SIDE)
    for drops, value in ((False, 1.0), (True, float("inf")), (True, 1.0), (False, 1.0)):
        optimizer.zero_grad()
        gradient = torch.randn(_SIDE, _SIDE, generator=generator)
        gradient[0, 0] = value
        scaler.scale((model.weight * gradient).sum()).backward()
        if drops:
            optimizer.load_state_dict(optimizer.state_dict())
        else:
            total += gradient
            scaler.step(optimizer)
            scaler.update()
    left = hvd.allreduce(total - optimizer.feedback.residuals["weight"], op=hvd.Sum)
    torch.testing.assert_close(left, -model.weight.detach(), rtol=0, atol=1e-4)


def test_a_dropped_step_leaves_no_trace():
    run_over_tcp(2, _dropped)


def _infinity_among_sparse_ones():
    hvd.init()
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(10, 4, sparse=True), _matrix()])
    optimizer = coding_optimizer(model, _TENTH, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        bad = float("inf") if step == 1 else 1.0
        loss = (model[1].weight * torch.randn(_SIDE, _SIDE)).sum()
        loss = loss + (model[0](torch.tensor([1, 2])) * bad).sum()
        before = {name: one.clone() for name, one in optimizer.feedback.residuals.items()}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if step == 1:
            assert scaler.get_scale() < scale
            for name, one in before.items():
                assert torch.equal(one, optimizer.feedback.residuals[name])


def test_infinity_in_a_sparse_gradient_leaves_no_trace_either():
    run_over_tcp(2, _infinity_among_sparse_ones)


def _waits_for_a_joined_rank():
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, Policy(_TENTH, feedback=Residual(beta=0.5)))
    _step(model, optimizer)
    if hvd.rank() == 0:
        kept = _norm(optimizer)
        for _ in range(3):
            _step(model, optimizer)
            assert _norm(optimizer) == kept > 0
    hvd.join()


def test_what_waits_for_a_joined_rank_does_not_fade():
    run_over_tcp(2, _waits_for_a_joined_rank)


# --- PowerSGD under autocast


def _autocast():
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, "powersgd:rank=2")
    gradient = torch.outer(torch.arange(_SIDE) / 7, torch.arange(_SIDE) / 9)  # not of 16 bits
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (model.weight * gradient).sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.weight.grad, 2 * gradient, rtol=1e-5, atol=1e-2)


def test_power_sgd_under_autocast_is_of_float32():
    run_over_tcp(2, _autocast)


# --- the hook


class _Bucket:
    """As DistributedDataParallel gives it."""

    def __init__(self):
        self.memory = torch.randn(_SIDE * _SIDE)
        self.parameter = nn.Parameter(torch.zeros(_SIDE, _SIDE))

    def buffer(self):
        return self.memory

    def gradients(self):
        return [self.memory.view(_SIDE, _SIDE)]

    def parameters(self):
        return [self.parameter]

    def index(self):
        return 0

    def is_last(self):
        return True


def _state_that_is_dropped(path):
    hvd.init()
    state = hvd.HookState(compression=_TENTH)
    bucket = _Bucket()
    for _ in range(2):
        hvd.allreduce_hook(state, bucket).wait()
    if hvd.rank() == 1:
        with Path(path).open() as fifo:  # until rank 0 has dropped its state
            fifo.read()
    bucket.parameter.sum().backward()
    future = hvd.allreduce_hook(state, bucket)
    (residual,) = state.feedback.residuals.values()
    memory = weakref.ref(residual._base)
    del residual, state
    gc.collect()
    if hvd.rank() == 0:
        assert memory() is not None, "the core writes to it"
        with Path(path).open("w") as fifo:
            fifo.write("dropped")
    future.wait()


def test_what_is_under_way_keeps_its_residuals(tmp_path):
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    run_over_tcp(2, _state_that_is_dropped, path)


def _hooks_that_differ(folder, compressions):
    """An error on every rank, also on those that compress nothing."""
    hvd.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=hvd.rank(), world_size=hvd.size()
    )
    mine = compressions[hvd.rank()]
    model = DistributedDataParallel(_matrix())
    state = None if mine is None else hvd.HookState(compression=mine)
    model.register_comm_hook(state, hvd.allreduce_hook)
    with pytest.raises((ValueError, RuntimeError), match="the ranks were given different"):
        model(torch.ones(2, _SIDE)).sum().backward()
    del model
    leave()


@pytest.mark.parametrize(
    "compressions", [(None, "int8"), ("int8", "bf16"), ("bf16", None)], ids=str
)
def test_hooks_that_compress_in_different_ways_are_an_error(tmp_path, compressions):
    run_over_tcp(2, _hooks_that_differ, str(tmp_path), compressions)


def _plain_hooks_may_differ_in_form(folder):
    hvd.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=hvd.rank(), world_size=hvd.size()
    )
    for _ in range(2):  # models
        model = DistributedDataParallel(nn.Sequential(_matrix(), _matrix()), bucket_cap_mb=0.1)
        state = hvd.HookState() if hvd.rank() == 1 else None
        model.register_comm_hook(state, hvd.allreduce_hook)
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, _SIDE)).sum().backward()
        del model
    leave()


def test_a_state_without_compression_is_as_none(tmp_path):
    run_over_tcp(2, _plain_hooks_may_differ_in_form, str(tmp_path))


# --- states


def _states():
    hvd.init()
    model = _matrix()
    residual = Policy(_TENTH)
    optimizer = coding_optimizer(model, residual)
    _step(model, optimizer)
    state = optimizer.feedback.state_dict()
    other = coding_optimizer(_matrix(), Policy(_TENTH, feedback=EF21()))
    with pytest.raises(ValueError, match="a state of residual or momentum with feedback ef21"):
        other.feedback.load_state_dict(state)
    kept = state["kept"]
    tensors = kept["residual"]
    nan = {"weight": torch.full((_SIDE, _SIDE), torch.nan)}
    for wrong, what in (
        ({"kept": {}}, "'kept' of a state"),
        ({"kept": None}, "'kept' of a state: None"),
        ({"kept": {**kept, "strange": {}}}, "'kept' of a state"),
        ({"kept": {**kept, "residual": nan}}, "'residual' of 'weight' of a state"),
        ({"kept": {**kept, "residual": {"weight": [1.0]}}}, "'residual' of 'weight' of a state"),
        ({"steps": None}, "'steps' of a state: None"),
        ({"factors": None}, "'factors' of a state: None"),
        ({"scale": 0}, "'scale' of a state: 0"),
        ({"scale": "x"}, "'scale' of a state: 'x'"),
        ({"flushing": None}, "'flushing' of a state: None"),
        ({"uneven": 1}, "'uneven' of a state: 1"),
        ({"rank_and_size": 5}, "'rank_and_size' of a state: 5"),
    ):
        with pytest.raises(ValueError, match=what):
            optimizer.feedback.load_state_dict({**state, **wrong})
        assert torch.equal(optimizer.feedback.residuals["weight"], tensors["weight"])


def test_what_is_no_state_or_of_another_kind_changes_nothing():
    run_over_tcp(2, _states)


def _state_after_nan():
    """A job without a scaler can go on from it."""
    hvd.init()
    policy = Policy(_TENTH, feedback=EF21())
    optimizer = coding_optimizer(model := _matrix(), policy)
    gradient = torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(hvd.rank()))
    _step(model, optimizer, gradient)
    spoilt = gradient.clone()
    if hvd.rank() == 1:
        spoilt[1, 1] = torch.nan
    _step(model, optimizer, spoilt)
    assert model.weight.grad.isnan().any()
    for state in (optimizer.feedback.state_dict(), optimizer.feedback.gathered_state_dict()):
        optimizer = coding_optimizer(model := _matrix(), policy)
        optimizer.feedback.load_state_dict(state)
        for _ in range(2):
            _step(model, optimizer, gradient)
            total = hvd.allreduce(gradient, op=hvd.Sum)
            torch.testing.assert_close(model.weight.grad, total, rtol=0, atol=1e-5)


def test_a_state_after_nan_can_be_loaded():
    run_over_tcp(2, _state_after_nan)


def _scaled_states():
    """A state of a scaled loss is not taken for one of a plain loss."""
    hvd.init()
    model = _matrix()
    optimizer = coding_optimizer(model, _TENTH)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale((model.weight * torch.randn(_SIDE, _SIDE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    state = optimizer.feedback.state_dict()
    kept = state["kept"]["residual"]["weight"] / 1024
    model = _matrix()
    fresh = coding_optimizer(model, _TENTH)
    fresh.feedback.load_state_dict(state)
    with pytest.raises(ValueError, match="the state that was loaded is of a loss times 1024"):
        _step(model, fresh)
    fresh.feedback.follow(None)
    torch.testing.assert_close(fresh.feedback.residuals["weight"], kept)
    _step(model, fresh)
    with pytest.raises(TypeError, match=r"follow\(3\) \(expected a torch.amp.GradScaler"):
        fresh.feedback.follow(3)


def test_a_state_of_a_scaled_loss_asks_for_the_scale():
    run_over_tcp(2, _scaled_states)
