"""Sums and what ranks keep are, together, all gradients that there were."""

from functools import partial

import pytest
import torch

import aiacc.torch as hvd
from aiacc.compression.codecs import Quantised, parse
from aiacc.compression.feedback import Residual
from aiacc.compression.policy import Policy
from aiacc.planning.plan import Plan
from tests.support.jobs import join_as, on_ranks
from tests.support.learning.coded import (
    Job,
    check_same,
    new_scaler,
    on_ranks_in_ddp,
    on_ranks_over_tcp,
    values_of,
)

#: Both memory layouts; small ones; one that rank 1 alone has in every other step.
_SHAPES = {
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
    shapes = {**_SHAPES, **dict(more)} if way != "hook" else {**_SHAPES, "conv": (16, 36)}
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
