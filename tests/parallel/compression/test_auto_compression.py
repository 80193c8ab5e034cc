"""compression="auto": a job that finds out what codecs save."""

import contextlib
import copy
import io
import os

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression import buckets as buckets_of_a_job
from aiacc.compression.codecs import BF16, NONE, Cast, MSTopK, Quantised
from aiacc.compression.watch import CHOSEN, CompressionWatch
from aiacc.torch import auto_compression
from tests.support.coded import check_same
from tests.support.ranks import run_ranks

_STEPS = 60


def _join_as(hosts, pace=0):
    """Become rank number AIACC_RANK of a job whose rank r is on host ``hosts[r]``."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    os.environ["AIACC_TEST_PACE_BYTES"] = str(pace)
    hvd.init()


def _optimized(compression="auto", **options):
    """A model, and what trains it."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(160, 160) for _ in range(4)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model.named_parameters(),
        compression=compression,
        **options,
    )
    torch.manual_seed(1 + hvd.rank())
    return model, optimizer


def _steps(model, optimizer, count=1):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(8, 160)).square().mean().backward()
        optimizer.step()


def _train(hosts, pace):
    _join_as(hosts, pace)
    model, optimizer = _optimized()
    start = model[0].weight.detach().clone()
    _steps(model, optimizer, _STEPS)
    assert not torch.equal(start, model[0].weight)
    check_same(torch.cat([p.detach().flatten() for p in model.parameters()]))
    optimizer.feedback.flush()
    _steps(model, optimizer)
    assert all(not residual.any() for residual in optimizer.feedback.residuals.values())
    return _codecs(model, optimizer)


def _codecs(model, optimizer):
    """How gradients travel, by name."""
    return {
        name: str(optimizer.feedback.policy_of(name).codec) for name, _ in model.named_parameters()
    }


@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_ranks_choose_alike(hosts):
    chosen = run_ranks(len(hosts), _train, hosts, 4_000_000)
    assert all(one == chosen[0] for one in chosen)


def test_nothing_is_coded_on_one_host():
    for chosen in run_ranks(2, _train, "aa", 0):
        assert set(chosen.values()) == {"none"}


def _by_tcp():
    """Every rank codes there, also on one host."""
    hvd.init()
    auto_compression.fit_steps = lambda steps: (1e-4, 1e-8)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model, optimizer = _optimized()
        _steps(model, optimizer, _STEPS)
    return said.getvalue()


def test_ranks_of_one_host_that_share_no_memory_choose_too():
    said, nothing = run_ranks(2, _by_tcp, env={"AIACC_ENGINE": "tcp"})
    assert " on 2 x 1 ranks, predicted " in said
    assert "two_level" not in said
    assert nothing == ""


class _Watch(CompressionWatch):
    """Finds what was chosen faster for as long as ``good``."""

    good = True

    def add(self, seconds):
        del seconds
        good = type(self).good
        super().add(0.5 if (self.current == CHOSEN) == good else 1.0)


def _each_as_it_was_chosen():
    """Three buckets that travel in three ways; then steps get slower."""
    _join_as("ab")
    auto_compression.FUSED_BYTES = 160 * 160 * 4
    auto_compression.CompressionWatch = _Watch
    auto_compression.WATCHED = 2
    seen = []

    def choose_each(buckets, *args, **options):
        found = buckets_of_a_job.choose_each(buckets, *args, **options)
        seen.append(list(buckets))
        ways = [MSTopK(density=0.1), BF16, Quantised("int8"), NONE]
        chosen = [one._replace(codec=way) for one, way in zip(found.chosen, ways, strict=True)]
        return found._replace(chosen=tuple(chosen))

    auto_compression.choose_each = choose_each
    auto_compression.fit_steps = lambda steps: (1e-4, 1e-8)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model, optimizer = _optimized()
        while not optimizer._plan._watch.settled:
            _steps(model, optimizer)
    assert seen == ([[160 * 160] * 4] if hvd.rank() == 0 else [])
    assert _codecs(model, optimizer) == {
        **dict.fromkeys([f"{layer}.bias" for layer in range(4)], "none"),
        "3.weight": "mstopk:density=0.1",  # its gradient comes first
        "2.weight": "bf16",
        "1.weight": "int8",
        "0.weight": "none",
    }
    lines = [line for line in said.getvalue().splitlines() if "compression" in line]
    assert len(lines) == (hvd.rank() == 0)
    for line in lines:
        assert "compression: chosen (measured steps: none 1 s, bf16 1 s, chosen 0.5 s)" in line
        assert " on 2 x 1 ranks, predicted " in line
    _steps(model, optimizer)
    assert set(optimizer.feedback.residuals) == {"3.weight"}
    assert optimizer.feedback.residuals["3.weight"].any()
    check_same(torch.cat([p.detach().flatten() for p in model.parameters()]))
    _Watch.good = False
    while optimizer._plan._watch.settled:
        _steps(model, optimizer)
    while not optimizer._plan._watch.settled:
        _steps(model, optimizer)
    assert set(_codecs(model, optimizer).values()) == {"none"}
    _steps(model, optimizer)
    assert not any(residual.any() for residual in optimizer.feedback.residuals.values())
    check_same(torch.cat([p.detach().flatten() for p in model.parameters()]))
    hvd.shutdown()


def test_every_bucket_travels_as_was_chosen_for_it():
    run_ranks(2, _each_as_it_was_chosen)


def _with_a_newcomer():
    """After `init` some ranks have residuals of a choice that others never made."""
    _join_as("ab")
    auto_compression.CompressionWatch = _Watch
    codecs = [MSTopK(density=0.1)]

    def choose_each(buckets, *args, **options):
        found = buckets_of_a_job.choose_each(buckets, *args, **options)
        return found._replace(chosen=tuple(one._replace(codec=codecs[0]) for one in found.chosen))

    auto_compression.choose_each = choose_each
    auto_compression.fit_steps = lambda steps: (1e-4, 1e-8)
    with contextlib.redirect_stderr(io.StringIO()):
        model, optimizer = _optimized()
        _steps(model, optimizer, _STEPS)
        assert any(residual.any() for residual in optimizer.feedback.residuals.values())
        hvd.shutdown()
        codecs[0] = Quantised("int8")
        hvd.init()
        if hvd.rank() == 1:
            model, optimizer = _optimized()
        _steps(model, optimizer, _STEPS)
    assert "int8" in _codecs(model, optimizer).values()
    hvd.shutdown()
    return len(optimizer.feedback.residuals)


def test_ranks_that_come_anew_go_along():
    assert run_ranks(2, _with_a_newcomer) == [0, 0]  # and nothing is left of the first choice


def _copied():
    _join_as("ab")
    auto_compression.CompressionWatch = _Watch
    auto_compression.fit_steps = lambda steps: (1e-4, 1e-6)
    model, optimizer = _optimized()
    while not optimizer._plan._watch.settled:
        _steps(model, optimizer)
    _steps(model, optimizer)
    assert optimizer.feedback.residuals
    other_model, other = copy.deepcopy((model, optimizer))
    assert set(_codecs(other_model, other).values()) == {"none"}
    _steps(other_model, other)
    assert not any(residual.any() for residual in other.feedback.residuals.values())
    while not other._plan._watch.settled:
        _steps(other_model, other)
    assert _codecs(other_model, other) == _codecs(model, optimizer)
    check_same(torch.cat([p.detach().flatten() for p in other_model.parameters()]))
    hvd.shutdown()


def test_a_copy_chooses_anew():
    run_ranks(2, _copied)


def _of_what_is_allowed():
    """Nothing but what the user names is tried, chosen or measured."""
    _join_as("ab")
    auto_compression.fit_steps = lambda steps: (1e-9, 1e-3)  # so slow that all of it pays
    visited = set()
    model, optimizer = _optimized("auto:int8:block=512")
    while not optimizer._plan._watch.settled:
        visited.add(optimizer._plan._watch.current)
        _steps(model, optimizer)
    assert visited == {"none", CHOSEN}
    chosen = {str(codec) for _, codec in optimizer._plan._chosen}
    assert chosen == {"int8:block=512"}
    hvd.barrier()
    text = ("auto:int8", "auto:bf16")[hvd.rank()]
    model, optimizer = _optimized(text)
    with pytest.raises(ValueError, match=rf"different compression: .*this one '{text}"):
        _steps(model, optimizer)
    hvd.barrier()
    hvd.shutdown()


def test_users_say_what_may_be_chosen():
    run_ranks(2, _of_what_is_allowed)


def _in_process_sets():
    """Ranks of a set lie on hosts in another way than those of the job."""
    _join_as("aabb")
    across = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])]
    inside = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    seen = []

    def choose_each(buckets, cluster, *args, **options):
        seen.append((cluster.hosts, cluster.local))
        return buckets_of_a_job.choose_each(buckets, cluster, *args, **options)

    auto_compression.choose_each = choose_each
    auto_compression.fit_steps = lambda steps: (1e-4, 1e-8)
    for sets in (across, inside):
        (mine,) = [one for one in sets if one.included()]
        model, optimizer = _optimized(process_set=mine)
        while optimizer._plan._chosen is None:
            _steps(model, optimizer)
        assert seen == ([(2, 1)] if hvd.rank() < 2 else []), "the first rank of each set decides"
    hvd.barrier()
    hvd.shutdown()


def test_a_process_set_counts_its_own_hosts():
    run_ranks(4, _in_process_sets)


def _refused():
    hvd.init()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="compression='auto' with plan, groups"):
        hvd.DistributedOptimizer(optimizer, compression="auto", groups=2)
    for options, text in (
        ({"op": hvd.Adasum}, r"op=Adasum with compression='auto' \(expected none, fp16 or bf16"),
        ({"schedule": "decoupled", "model": model}, r"decoupled' with compression='auto' "),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, compression="auto", **options)
    feedback = hvd.DistributedOptimizer(optimizer, compression="auto").feedback
    assert isinstance(feedback.policy.codec, Cast)


def test_buckets_of_the_user_are_refused():
    run_ranks(1, _refused, launcher="python")
