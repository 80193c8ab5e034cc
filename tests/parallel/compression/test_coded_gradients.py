"""Gradients that travel coded: what is sent and what is kept is what there was."""

from __future__ import annotations

import copy
import os
import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import Quantised, parse
from aiacc.compression.feedback import EF21, Residual
from aiacc.compression.policy import Policy
from aiacc.exceptions import MismatchError
from aiacc.planning.plan import Plan
from tests.support.coded import check_same, coding_optimizer, run_over_tcp
from tests.support.ranks import run_ranks


class _Net(nn.Module):
    """Both memory layouts, a frozen layer, and one that few ranks use."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3).to(memory_format=torch.channels_last)
        self.hidden = nn.Linear(16, 24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.sometimes = nn.Linear(24, 24)
        self.out = nn.Linear(24, 40)

    def forward(self, x, sometimes):
        h = self.hidden(self.conv(x.to(memory_format=torch.channels_last)).mean((2, 3)).tanh())
        h = self.frozen(h) + (self.sometimes(h) if sometimes else 0)
        return self.out(h)


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4, 4, 6, 6, generator=generator)
    return model(x, rank == 1 and step % 2 == 1).pow(2).mean()


_POLICIES = {
    "int8": Policy(Quantised("int8", 128), feedback=Residual(), least_elements=64),
    "int4": Policy(Quantised("int4", 128, stochastic=True), least_elements=64),
    "topk": Policy(parse("topk:density=0.05"), least_elements=64),
    "randomk": Policy(parse("randomk:density=0.05"), least_elements=64),
    "powersgd": Policy(parse("powersgd:rank=1"), least_elements=64),
}


def _local_gradients(model, rank, step, passes):
    model.zero_grad()
    for number in range(passes):
        _loss(model, rank, step * passes + number).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _conserved(policy, options, ranks, steps):
    """Over all steps: results, and what ranks keep in the end, are what ranks had.

    ``steps[rank]`` of each of ``ranks``; then it joins, unless all have as many.
    """
    torch.manual_seed(0)
    model = _Net()
    plain = copy.deepcopy(model)
    passes = options.get("backward_passes_per_step", 1)
    predivide = options.get("gradient_predivide_factor", 1.0)
    if options.get("groups") == "named":
        options = {"groups": [[model.conv.weight, model.out.weight, model.out.bias]]}
    optimizer = coding_optimizer(model, policy, **options)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    left = {name: torch.zeros(model.get_parameter(name).shape).double() for name in names}
    largest = dict.fromkeys(names, 0.0)
    # An element's error is that of its block: up to the largest of all that was added up, a
    # quarter more where chance rounds. See coded_all_reduce_test.cc.
    rounding = 1.25 * 2**-24 * (max(steps.values()) + 1) * (2 * len(ranks) + 2) * len(ranks)
    low_rank = policy.codec.name == "powersgd"
    if low_rank:
        rounding *= 40  # sums of products of as many elements as a matrix has rows

    def one_step(step):
        optimizer.zero_grad(set_to_none=not options.get("gradient_as_bucket_view"))
        for number in range(passes):
            _loss(model, hvd.rank(), step * passes + number).backward()
        optimizer.step()
        for rank in ranks:
            if step < steps[rank]:
                for name, gradient in _local_gradients(plain, rank, step, passes).items():
                    left[name] += gradient
                    largest[name] += gradient.abs().max().item()
        for name in names:
            gradient = model.get_parameter(name).grad
            left[name] -= gradient.double() * (
                len(ranks) if options.get("op") == hvd.Average else 1
            )

    for step in range(steps[hvd.rank()]):
        one_step(step)
    same_steps = len(set(steps.values())) == 1
    if not same_steps:
        hvd.join()
    residuals = optimizer.feedback.residuals
    assert {"conv.weight", "hidden.weight", "out.weight"} <= residuals.keys()
    gather = partial(hvd.allgather, process_set=options.get("process_set", hvd.global_process_set))
    for name in names:
        kept = residuals.get(name, torch.zeros_like(model.get_parameter(name))).double()
        kept = predivide * gather(kept.reshape(1, -1)).sum(0).view(kept.shape)
        if steps[hvd.rank()] == max(steps.values()):
            error = (left[name] - kept).abs().max().item()
            assert error <= rounding * largest[name], (options, name)
            nothing_is_lost = name not in residuals or (low_rank and "bias" in name)
            assert error < kept.abs().max() / 1000 or nothing_is_lost or "some" in name
    if same_steps:
        optimizer.feedback.flush()
        steps = {rank: count + 1 for rank, count in steps.items()}
        one_step(steps[hvd.rank()] - 1)
        for name in names:
            assert left[name].abs().max().item() <= rounding * largest[name], (options, name)
            everyones = gather(model.get_parameter(name).grad.reshape(1, -1))
            assert torch.equal(everyones, everyones[:1].expand_as(everyones))
        for residual in residuals.values():
            assert not residual.any(), options


_WAYS = [
    {},
    {"backward_passes_per_step": 2},
    {"groups": 2},
    {"groups": "named"},
    {"plan": Plan("mine", (("out.weight", "hidden.weight"), ("conv.weight", "conv.bias")))},
    {"gradient_as_bucket_view": True},
    {"gradient_predivide_factor": 4.0, "op": hvd.Average},
]


def _conserved_in_every_way(policy):
    hvd.init()
    for options in _WAYS:
        _conserved(policy, options, range(2), {0: 5, 1: 5})
    hvd.shutdown()


@pytest.mark.parametrize("kind", _POLICIES)
def test_sums_and_what_is_kept_are_all_there_was(kind):
    run_over_tcp(2, _conserved_in_every_way, _POLICIES[kind])


def _conserved_on_hosts(hosts):
    """Ranks keep what is lost between hosts, of their share of their host's sum."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_ENGINE"] = "hierarchical"
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    hvd.init()
    steps = dict.fromkeys(range(len(hosts)), 3)
    _conserved(_POLICIES["int8"], {}, range(len(hosts)), steps)
    _conserved(_POLICIES["topk"], {"gradient_as_bucket_view": True}, range(len(hosts)), steps)
    _conserved(_POLICIES["randomk"], {}, range(len(hosts)), steps)
    # Rank 1 keeps what is lost of a share of its host's sum, until it joins.
    _conserved(_POLICIES["topk"], {}, range(len(hosts)), {**steps, 1: 2})
    hvd.shutdown()


def test_hosts_of_several_ranks_lose_nothing_either():
    run_ranks(4, _conserved_on_hosts, "aabb")


def _conserved_by_some():
    hvd.init()
    process_set = hvd.add_process_set([0, 2])
    if process_set.included():
        for kind in ("topk", "randomk"):
            _conserved(_POLICIES[kind], {"process_set": process_set}, [0, 2], {0: 3, 2: 3})
    hvd.barrier()
    for kind in ("topk", "int8", "powersgd"):
        _conserved(_POLICIES[kind], {}, range(3), {0: 2, 1: 5, 2: 5})
    hvd.shutdown()


def test_process_sets_and_ranks_that_have_not_joined_keep_what_is_theirs():
    run_over_tcp(3, _conserved_by_some)


def _sparse():
    hvd.init()
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"words": nn.Embedding(200, 100, sparse=True), "out": nn.Linear(100, 200)}
    )
    plain = copy.deepcopy(model)
    optimizer = coding_optimizer(model, Policy(parse("topk:density=0.05"), least_elements=64))

    def loss(net, rank, step):
        places = torch.tensor([rank, step, 7 * rank + step])
        return net["out"](net["words"](places)).pow(2).mean()

    left = torch.zeros(200, 100).double()
    for step in range(4):
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        optimizer.step()
        words, total = torch.zeros(200, 100), torch.zeros(200, 100).double()
        for rank in range(hvd.size()):
            plain.zero_grad()
            loss(plain, rank, step).backward()
            words += plain["words"].weight.grad.to_dense()
            total += plain["out"].weight.grad
        torch.testing.assert_close(model["words"].weight.grad.to_dense(), words)
        left += total - model["out"].weight.grad
    kept = hvd.allreduce(optimizer.feedback.residuals["out.weight"].double(), op=hvd.Sum)
    torch.testing.assert_close(kept, left, rtol=0, atol=1e-5 * left.abs().max().item())
    assert "words.weight" not in optimizer.feedback.residuals
    hvd.shutdown()


def test_sparse_gradients_are_gathered_beside_coded_ones():
    run_over_tcp(2, _sparse)


def _after_a_join(policy, then):
    """One rank has done fewer steps than the other when they go on together."""
    torch.manual_seed(0)
    optimizer = coding_optimizer(model := nn.Linear(64, 64), policy)

    def steps(count, same=True):
        for _ in range(count):
            optimizer.zero_grad()
            x = torch.randn(8, 64) * (1 + hvd.rank())
            model(x).pow(2).mean().backward()
            optimizer.step()
            if same:
                check_same(model.weight.grad)

    torch.manual_seed(hvd.rank())
    steps(3)
    steps(3 - 2 * hvd.rank(), same=False)
    hvd.join()
    if then == "joins again":  # at once, without having learnt what step it is
        steps(2 - 2 * hvd.rank(), same=False)
        hvd.join()
    elif then == "is loaded":
        state = optimizer.feedback.state_dict()
        optimizer = coding_optimizer(model := nn.Linear(64, 64), policy)
        optimizer.feedback.load_state_dict(state)
    steps(9)


def _after_joins():
    hvd.init()
    topk = parse("topk:density=0.05")
    for policy in (
        Policy(topk, least_elements=1, dense_steps=7),
        Policy(topk, least_elements=1, stage_steps=2),
        Policy(topk, least_elements=1, feedback=EF21()),
        Policy(Quantised("int8"), least_elements=1, dense_steps=7),
    ):
        for then in ("goes on", "joins again", "is loaded"):
            _after_a_join(policy, then)
    hvd.shutdown()


def test_ranks_agree_on_steps_and_on_what_all_know_after_a_join():
    run_over_tcp(2, _after_joins)


def _with_a_newcomer(policy):
    """Rank 0 goes on after `init` anew; what rank 1 was is gone, and a new rank is in its place."""
    hvd.init()

    def trained():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64))
        return model, coding_optimizer(model, policy)

    def steps(model, optimizer, count):
        for step in range(count):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + hvd.rank())
            model(torch.randn(8, 64, generator=generator)).pow(2).mean().backward()
            optimizer.step()
            check_same(model[0].weight.grad)

    model, optimizer = trained()
    steps(model, optimizer, 3)
    optimizer.feedback.flush()  # of this step rank 0 will know, and the new rank will not
    newcomer = hvd.rank() == 1
    hvd.shutdown()
    hvd.init()
    if newcomer:
        model, optimizer = trained()
    mine = optimizer.feedback.state_dict()["kept"]["residual"]
    total = optimizer.feedback.gathered_state_dict()["kept"]["residual"]
    for name, one in hvd.broadcast_object(mine).items():
        assert torch.equal(total[name], one)  # the newcomer keeps nothing yet
    steps(model, optimizer, 4)
    hvd.shutdown()


def _with_newcomers():
    topk = parse("topk:density=0.05")
    for policy in (
        Policy(topk, least_elements=1, feedback=EF21()),
        Policy(topk, least_elements=1, dense_steps=2, stage_steps=1),
        Policy(topk, least_elements=1),
        Policy(parse("powersgd:rank=2"), least_elements=1),
    ):
        _with_a_newcomer(policy)


def test_ranks_that_come_anew_know_as_much_as_those_that_stay():
    run_over_tcp(2, _with_newcomers)


def _given_different_ones():
    hvd.init()
    int8 = Policy(Quantised("int8"))
    residual = Policy(Quantised("int8"), feedback=Residual())
    differ = (
        "the ranks were given different compression: ",
        (
            "this one Policy(int8), another rank something else, which its own error says",
            "rank 0 Policy(int8), this one Policy(int8, feedback=residual)",
        )[hvd.rank()],
        " (expected the same on every rank); pass the same compression on every rank",
    )
    for pair, text in ((("int8", "none"), "ranks"), ((int8, residual), re.escape("".join(differ)))):
        model = nn.Linear(128, 128)
        optimizer = coding_optimizer(model, pair[hvd.rank()])
        model(torch.ones(1, 128)).sum().backward()
        with pytest.raises((MismatchError, ValueError), match=text):
            optimizer.step()
        hvd.barrier()
    hvd.shutdown()


def test_different_codecs_are_an_error_on_every_rank():
    run_over_tcp(2, _given_different_ones)


def _too_small(hosts):
    """What is said of codecs that are for none of the gradients."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    hvd.init()
    said = []
    for compression in ("int8", Policy(Quantised("int8"), least_elements=1), "powersgd", "bf16"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = nn.Linear(4, 4)
            optimizer = coding_optimizer(model, compression)
            for _ in range(2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        said.append([str(one.message) for one in caught])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = Policy(Quantised("int8"), exclude=("*",))
        state = hvd.HookState(compression=policy, named_parameters=model.named_parameters())
        for number in range(3):
            state.begin_pass(number == 0)
    said.append([str(one.message) for one in caught])
    hvd.shutdown()
    return said


def test_a_codec_that_is_for_nothing_is_said_once_by_the_first_rank():
    (int8, policy, powersgd, bf16, hook), others = run_ranks(2, _too_small, "ab")
    assert len(int8) == len(powersgd) == len(hook) == 1
    assert "int8 compresses none of 2 gradients: 1 of fewer than 16384 elements, 1 of" in int8[0]
    assert policy == bf16 == []
    assert others == [[]] * 5
    on_one_host, _ = run_ranks(2, _too_small, "aa")  # where powersgd alone would do something
    assert [len(said) for said in on_one_host] == [0, 0, 1, 0, 0], (
        "only powersgd is for one host, too"
    )
    coding_there, _ = run_over_tcp(2, _too_small, "aa")
    assert [len(said) for said in coding_there] == [1, 0, 1, 0, 1]
