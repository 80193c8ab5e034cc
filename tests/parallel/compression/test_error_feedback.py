"""What codecs lose comes later: every feedback as its reference has it, and where training ends."""

import copy
import gc
import os
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, RandomK, parse
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.coded import (
    WAYS,
    Job,
    check_same,
    coding_optimizer,
    on_ranks_in_ddp,
    on_ranks_over_tcp,
    same,
    values_of,
)
from tests.support.learning.codes import Reference
from tests.support.ranks import run_ranks

_SHAPE = (40, 30)
_KINDS = (
    *(NoFeedback(), Residual(0.9), Momentum(0.5, masking=False), Momentum(0.5)),
    *(Momentum(0.5, nesterov=True), EF21()),
)


def like_references(ways, coded=True):
    """Densities fall from dense steps on; each way has the bits that the others have."""
    for keeps in _KINDS:
        policy = Policy(
            parse("topk:density=0.05"),
            feedback=keeps,
            least_elements=64,
            dense_steps=2,
            stages=2,
            stage_steps=2,
        )
        jobs = [Job(policy, {"weight": _SHAPE}, way) for way in ways]
        reference = Reference(policy, _SHAPE, hvd.size(), coded=coded)
        for step in range(8):
            gradients = [values_of(10 * step + rank, *_SHAPE) for rank in range(hvd.size())]
            expected = reference.step([gradient.numpy() for gradient in gradients])
            found = []
            for job in jobs:
                result = job.step({"weight": gradients[hvd.rank()]})["weight"]
                found.append(hvd.size() * result if job.averages else result)
                assert torch.equal(found[-1], found[0]), (keeps, step)
            # In up to 6 sums, which the next step rounds anew.
            rounding = (step + 1) * 6 * 2**-24 * np.abs(expected).max()
            np.testing.assert_allclose(found[0].numpy(), expected, rtol=0, atol=rounding)
        for job in jobs[1:]:
            kept = job.kept()
            if job.averages and "known.weight" in kept:
                kept["known.weight"] *= hvd.size()
            assert same(kept, jobs[0].kept()), keeps


@in_job
def references(coded=True):
    like_references(("optimizer", "views"), coded)


def test_every_feedback_is_that_of_its_reference_where_nothing_is_coded():
    """On one host, where momentum does not begin anew."""
    run_ranks(2, references, False)


@on_ranks_in_ddp(2)
def test_every_feedback_is_that_of_its_reference():
    like_references(tuple(WAYS))


@on_ranks_over_tcp(2)
def test_codecs_of_blocks_have_momentum_without_masking():
    job = Job(Policy(parse("int8"), feedback=Momentum(0.5, masking=False)), {"weight": (160, 160)})
    for expected in (2, 3, 3.5, 3.75):
        result = job.step({"weight": torch.ones(160, 160)})["weight"]
        # What is largest in its block is off by what its scale is, which is rounded up.
        torch.testing.assert_close(result, torch.full_like(result, expected), rtol=2**-14, atol=0)


@on_ranks(1)
def test_one_rank_alone_learns_that_it_has_no_momentum():
    policy = Policy(MSTopK(0.1), feedback=Momentum(0.5))
    with pytest.warns(UserWarning, match="one rank alone reduces nothing, so there is no momentum"):
        coding_optimizer(nn.Linear(160, 160), policy)


# --- PowerSGD


def _inputs(step, rank):
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * step + rank))


@on_ranks_in_ddp(2)
def test_powersgd_is_that_of_torch():
    """Both begin with the same factor, so they find the same approximations, up to rounding."""
    torch.manual_seed(0)
    model = nn.Linear(24, 40, bias=False)
    theirs = DistributedDataParallel(copy.deepcopy(model))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    policy = Policy(parse("powersgd:rank=2"), least_elements=64, dense_steps=2)
    optimizer = coding_optimizer(model, policy, op=hvd.Average)
    optimizer.feedback.factors["weight"] = factor = torch.randn(24, 2)
    state.p_memory_dict[0] = torch.zeros(40 * 2)
    state.q_memory_dict[0] = factor.flatten().clone()
    theirs.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(8):
        for one in (theirs, model):
            one.zero_grad()
            one(_inputs(step, hvd.rank())).pow(3).mean().backward()
        optimizer.step()
        check_same(model.weight.grad)
        torch.testing.assert_close(
            model.weight.grad, theirs.module.weight.grad, rtol=1e-3, atol=1e-4
        )
        assert torch.linalg.matrix_rank(model.weight.grad) <= (24 if step < 2 else 2)


@on_ranks_over_tcp(2)
def test_powersgd_under_autocast_is_of_float32():
    model = nn.Linear(160, 160, bias=False)
    optimizer = coding_optimizer(model, "powersgd:rank=2")
    gradient = torch.outer(torch.arange(160) / 7, torch.arange(160) / 9)  # not of 16 bits
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (model.weight * gradient).sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.weight.grad, 2 * gradient, rtol=1e-5, atol=1e-2)


# --- training


def _quadratic(feedback, codec):
    """Minimises the mean of |w - a_r|^2 / 2 over the ranks; how far from the minimum it ends.

    With feedback theory bounds that. Let e be the mean residual and x = w - lr e. Then the next
    x - w* is (1 - lr) (x - w*) - lr^2 e, and a residual with its gradient g loses at least the
    part d of its square that the largest d of elements are: |e| <= sqrt(1 - d) (|e| + |g|) (Stich
    et al., "Sparsified SGD with memory", NeurIPS 2018). Random elements do so in the mean.
    """
    density, lr, steps = codec.density, 0.01, 700
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(32, 32, generator=generator)
    targets = [common + 0.5 * torch.randn(32, 32, generator=generator) for _ in range(hvd.size())]
    best = torch.stack(targets).mean(0)
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(32, 32))
    policy = Policy(codec, feedback=feedback, least_elements=1)
    optimizer = coding_optimizer(model, policy, lr=lr, op=hvd.Average)
    distance, errors = best.norm().item(), [0.0] * hvd.size()
    for _ in range(steps):
        optimizer.zero_grad()
        gradients = [(model.w.detach() - target).norm().item() for target in targets]
        (model.w - targets[hvd.rank()]).pow(2).sum().div(2).backward()
        optimizer.step()
        distance = (1 - lr) * distance + lr**2 * sum(errors) / hvd.size()
        errors = [(1 - density) ** 0.5 * (e + g) for e, g in zip(errors, gradients, strict=True)]
    check_same(model.w.detach())
    return (model.w - best).norm().item(), distance + lr * sum(errors) / len(errors)


@on_ranks_over_tcp(2)
def test_with_feedback_training_ends_where_theory_says_and_without_elsewhere():
    largest = MSTopK(0.1, mode="exact")
    reached, bound = _quadratic(Residual(), largest)
    without, _ = _quadratic(NoFeedback(), largest)
    random, same_bound = _quadratic(Residual(), RandomK(density=0.1))
    assert reached <= bound
    assert without > bound
    assert random <= same_bound


# --- what a hook holds


@on_ranks_over_tcp(2)
def test_residuals_of_an_operation_under_way_outlive_the_state_of_the_hook(tmp_path):
    path = tmp_path / "fifo"
    if hvd.rank() == 0:
        os.mkfifo(path)
    state = hvd.HookState(compression="mstopk:density=0.1")
    memory, parameter = torch.randn(160 * 160), nn.Parameter(torch.zeros(160, 160))
    gives = {"buffer": memory, "gradients": [memory.view(160, 160)], "parameters": [parameter]}
    # As DistributedDataParallel gives it.
    bucket = mock.Mock(**{f"{name}.return_value": value for name, value in gives.items()})
    bucket.index.return_value, bucket.is_last.return_value = 0, True
    for _ in range(2):
        hvd.allreduce_hook(state, bucket).wait()
    if hvd.rank() == 1:
        path.read_text()  # until rank 0 has dropped its state
    parameter.sum().backward()
    future = hvd.allreduce_hook(state, bucket)
    (residual,) = state.feedback.residuals.values()
    written = weakref.ref(residual._base)
    del residual, state
    gc.collect()
    if hvd.rank() == 0:
        assert written() is not None, "the core writes to it"
        path.write_text("dropped")
    future.wait()


@on_ranks_in_ddp(2)
def test_parameters_trained_later_are_watched_while_a_hook_is_there():
    job = Job(
        "topk:density=0.05",
        {"first": (40, 40), "second": (40, 40)},
        "hook",
        find_unused_parameters=True,
    )
    weight = job.model.first
    weight.requires_grad_(False)
    gradient = values_of(1, 40, 40)
    for number in range(40):
        results = job.step({"first": gradient, "second": gradient})
        if number == 0:
            weight.requires_grad_(True)
    assert (weight != 0).float().mean() > 0.6
    assert results["first"].any()
    watches = len(weight._post_accumulate_grad_hooks)
    copied = copy.deepcopy(job.state)
    del copied
    gc.collect()
    assert len(weight._post_accumulate_grad_hooks) == watches, "a copy has hooks of its own"
    del job
    gc.collect()
    assert not weight._post_accumulate_grad_hooks
