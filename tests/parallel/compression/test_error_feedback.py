"""What codecs lose is kept and comes later: nothing is lost, and by each feedback's reference."""

import copy
import gc
import os
import weakref
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, Quantised, parse
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy
from aiacc.planning.plan import Plan
from tests.support.jobs import in_job, join_as, on_ranks
from tests.support.learning.coded import (
    WAYS,
    Job,
    check_same,
    coding_optimizer,
    new_scaler,
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


@on_ranks_in_ddp(2)
def test_every_feedback_is_that_of_its_reference():
    like_references(tuple(WAYS))
    # Codecs of blocks have momentum without masking.
    job = Job(Policy(parse("int8"), feedback=Momentum(0.5, masking=False)), {"weight": (160, 160)})
    for expected in (2, 3, 3.5, 3.75):
        result = job.step({"weight": torch.ones(160, 160)})["weight"]
        # What is largest in its block is off by what its scale is, which is rounded up.
        torch.testing.assert_close(result, torch.full_like(result, expected), rtol=2**-14, atol=0)


def test_every_feedback_is_that_of_its_reference_where_nothing_is_coded():
    """On one host, where momentum does not begin anew."""
    run_ranks(2, references, False)


@on_ranks(1)
def test_one_rank_alone_learns_that_it_has_no_momentum():
    policy = Policy(MSTopK(0.1), feedback=Momentum(0.5))
    with pytest.warns(UserWarning, match="one rank alone reduces nothing, so there is no momentum"):
        coding_optimizer(nn.Linear(160, 160), policy)


# --- PowerSGD


def _inputs(step, rank):
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * step + rank))


@on_ranks_in_ddp(2)
def test_powersgd_is_that_of_torch_and_of_float32():
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

    # Under autocast it is of float32.
    model = nn.Linear(160, 160, bias=False)
    optimizer = coding_optimizer(model, "powersgd:rank=2")
    gradient = torch.outer(torch.arange(160) / 7, torch.arange(160) / 9)  # not of 16 bits
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (model.weight * gradient).sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.weight.grad, 2 * gradient, rtol=1e-5, atol=1e-2)


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


# --- sums and what ranks keep are, together, all gradients that there were

#: Both memory layouts; small ones; one that rank 1 alone has in every other step.
_LAYOUTS = {
    "conv": (16, 4, 3, 3),
    "hidden": (24, 16),
    "hidden_bias": (24,),
    "sometimes": (24, 24),
    "out": (40, 24),
    "out_bias": (40,),
}

POLICIES = {
    "int8": Policy(Quantised("int8", 128), feedback=Residual(), least_elements=64),
    "int4": Policy(Quantised("int4", 128, stochastic=True), least_elements=64),
    "topk": Policy(parse("topk:density=0.05"), least_elements=64),
    "mstopk": Policy(parse("mstopk:density=0.05"), least_elements=64),
    "randomk": Policy(parse("randomk:density=0.05"), least_elements=64),
    "powersgd": Policy(parse("powersgd:rank=1"), least_elements=64),
}


def _gradients(rank, batch, shapes):
    gradients = {
        name: values_of(1000 * batch + 10 * rank + place, *shape)
        for place, (name, shape) in enumerate(shapes.items())
        if name != "sometimes" or (rank == 1 and batch % 2 == 1)
    }
    if "words" in gradients:
        rows = torch.tensor([[rank, batch, 7 * rank + batch]])
        words = gradients["words"][:3]
        gradients["words"] = torch.sparse_coo_tensor(rows, words, shapes["words"])
    return gradients


def _conserved(policy, way, ranks, steps, *, scaled=False, more=()):
    """``steps[rank]`` of each of ``ranks``; then it joins, unless all have as many. The job."""
    shapes = {**_LAYOUTS, **dict(more)} if way != "hook" else {**_LAYOUTS, "conv": (16, 36)}
    job = Job(
        policy,
        shapes,
        way,
        scale=1024.0 if scaled else None,
        bucket_mb=0.005,
        find_unused_parameters=True,
    )
    options = way if isinstance(way, dict) else {}
    passes = options.get("backward_passes_per_step", 1)
    predivide = options.get("gradient_predivide_factor", 1.0)
    left = {name: torch.zeros(shape).double() for name, shape in shapes.items()}
    largest = dict.fromkeys(shapes, 0.0)
    # An element's error is that of its block: up to the largest of all that was added up, a
    # quarter more where chance rounds. See coded_all_reduce_test.cc.
    rounding = 1.25 * 2**-24 * (max(steps.values()) + 1) * (2 * len(ranks) + 2) * len(ranks)
    low_rank = policy.codec.name == "powersgd"
    if low_rank:
        rounding *= 40  # sums of products of as many elements as a matrix has rows

    def one_step(step):
        if scaled and step == 2:  # a scaler that takes the place of the first
            job.scaler = new_scaler(1024.0)
        if scaled and step > 2:
            job.scaler.update(64.0 * 16 ** (step % 2))
        if way == "hook" and step == 3:
            job.wrap(0.005, find_unused_parameters=True)
        batches = range(step * passes, (step + 1) * passes)
        results = job.step(*(_gradients(hvd.rank(), batch, shapes) for batch in batches))
        for rank in ranks:
            for batch in batches if step < steps[rank] else ():
                for name, gradient in _gradients(rank, batch, shapes).items():
                    left[name] += gradient.to_dense()
                    largest[name] += gradient.to_dense().abs().max().item()
        for name, result in results.items():
            left[name] -= result.to_dense().double() * (len(ranks) if job.averages else 1)

    for step in range(steps[hvd.rank()]):
        one_step(step)
    same_steps = len(set(steps.values())) == 1
    if not same_steps:
        hvd.join()
    residuals = job.feedback.residuals
    assert {"conv", "hidden", "out"} <= residuals.keys()
    among = {"process_set": options.get("process_set", hvd.global_process_set)}
    unit = predivide / job.feedback.state_dict()["scale"]
    for name, shape in shapes.items():
        kept = residuals.get(name, torch.zeros(shape)).double()
        kept = unit * hvd.allgather(kept.reshape(1, -1), **among).sum(0).view(shape)
        if steps[hvd.rank()] == max(steps.values()):
            error = (left[name] - kept).abs().max().item()
            assert error <= rounding * largest[name], (way, name)
            nothing_is_lost = name not in residuals or (low_rank and "bias" in name)
            assert error < kept.abs().max() / 1000 or nothing_is_lost or name == "sometimes"
    if not same_steps:
        return job
    job.feedback.flush()
    last = steps[hvd.rank()]
    steps = {rank: count + 1 for rank, count in steps.items()}
    one_step(last)
    for name, parameter in job.model.named_parameters():
        assert left[name].abs().max().item() <= rounding * largest[name], (way, name)
        check_same(parameter.grad.to_dense(), **among)
    for residual in job.feedback.residuals.values():
        assert not residual.any(), way
    return job


_WAYS = [
    {},
    {"backward_passes_per_step": 2},
    {"groups": 2},
    {"groups": [["conv", "out", "out_bias"]]},
    {"plan": Plan("mine", (("out", "hidden"), ("conv", "hidden_bias")))},
    {"gradient_as_bucket_view": True},
    {"gradient_predivide_factor": 4.0, "op": hvd.Average},
]


@pytest.mark.parametrize("kind", POLICIES)
@on_ranks_over_tcp(2)
def test_sums_and_what_is_kept_are_all_there_was(kind):
    for way in _WAYS:
        _conserved(POLICIES[kind], way, range(2), {0: 5, 1: 5})
    _conserved(POLICIES[kind], {}, range(2), {0: 5, 1: 5}, scaled=True)


def conserved_by_a_hook(policy):
    """DDP forms its buckets anew after the first step; what is kept moves with its gradients."""
    _conserved(policy, "hook", range(2), {0: 5, 1: 5})


@on_ranks_in_ddp(2)
def test_hooks_lose_nothing_though_buckets_change():
    for kind in ("int8", "int4", "topk", "randomk"):
        conserved_by_a_hook(POLICIES[kind])


@on_ranks(4, starts=False, env={"AIACC_ENGINE": "hierarchical"})
def test_hosts_of_several_ranks_lose_nothing_either():
    """Ranks keep what is lost between hosts, of their share of their host's sum."""
    join_as("aabb")
    conserved = partial(_conserved, ranks=range(4))
    steps = dict.fromkeys(range(4), 3)
    conserved(POLICIES["int8"], {}, steps=steps)
    conserved(POLICIES["topk"], {"gradient_as_bucket_view": True}, steps=steps)
    conserved(POLICIES["randomk"], {}, steps=steps)
    # Rank 1 keeps what is lost of a share of its host's sum, until it joins.
    conserved(POLICIES["topk"], {}, steps={**steps, 1: 2})


@on_ranks_over_tcp(3)
def test_process_sets_and_ranks_that_have_not_joined_keep_what_is_theirs():
    process_set = hvd.add_process_set([0, 2])
    if process_set.included():
        for kind in ("topk", "randomk"):
            _conserved(POLICIES[kind], {"process_set": process_set}, [0, 2], {0: 3, 2: 3})
    hvd.barrier()
    for kind in ("topk", "int8", "powersgd"):
        _conserved(POLICIES[kind], {}, range(3), {0: 2, 1: 5, 2: 5})


@on_ranks_over_tcp(2)
def test_sparse_gradients_are_gathered_beside_coded_ones():
    job = _conserved(POLICIES["topk"], {}, range(2), {0: 4, 1: 4}, more={"words": (200, 100)})
    assert job.model.words.grad.is_sparse
    assert "words" not in job.feedback.residuals
