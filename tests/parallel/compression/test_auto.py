"""compression="auto": a job that finds out what codecs save, and what must not lead it astray."""

import contextlib
import copy
import io
import os

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.autotune import tuner
from aiacc.compression import buckets as buckets_of_a_job
from aiacc.compression.codecs import BF16, NONE, MSTopK, Quantised
from aiacc.compression.watch import MIX, CompressionWatch
from aiacc.torch import auto_compression
from tests.support.jobs import join_as, on_ranks
from tests.support.learning.training import check_same_everywhere

_STEPS = 60
#: Costs of a network so slow that all pays, of one so fast that nothing does, and between.
_SLOW, _FAST, _USUAL = (1e-9, 1e-3), (0.0, 1e-15), (1e-4, 1e-8)


class _Watch(CompressionWatch):
    """Finds the mix faster for as long as ``good``."""

    good = True

    def add(self, seconds):
        super().add(0.5 if (self.current == MIX) == type(self).good else 1.0)


class _Auto:
    """A model, and what trains it with a compression that is found."""

    def __init__(self, compression="auto", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(160, 160) for _ in range(4)])
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01),
            self.model.named_parameters(),
            compression=compression,
            **options,
        )
        self.said = ""
        torch.manual_seed(1 + hvd.rank())

    @property
    def found(self):
        """The one that finds it, which has no public statistics."""
        return self.optimizer._aiacc_plan

    @property
    def codecs(self):
        """How gradients travel, by name."""
        feedback = self.optimizer.feedback
        return {
            name: str(feedback.policy_of(name).codec) for name, _ in self.model.named_parameters()
        }

    @property
    def keeps(self):
        return any(one.any() for one in self.optimizer.feedback.residuals.values())

    def step(self, count=1):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 160)).square().mean().backward()
            self.optimizer.step()

    def settle(self, until=True):
        """Until all ranks have compared, or begin to compare anew."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            while self.found._watch.settled != until and not self.found._over:
                self.step()
        self.said += said.getvalue()
        return self


def _pretend(costs=_USUAL, hosts="ab", chosen=None, watch=_Watch):
    """Join anew on these hosts, with costs of operations that nobody measures.

    ``chosen``: what a codec of each bucket is replaced by, in the place of what is chosen.
    """
    hvd.shutdown()
    join_as(hosts)
    auto_compression.CompressionWatch = watch
    auto_compression.fit_steps = lambda steps: costs
    if chosen is None:
        return

    def choose_each(buckets, *args, **options):
        found = buckets_of_a_job.choose_each(buckets, *args, **options)
        pairs = zip(found.chosen, chosen(list(buckets)), strict=True)
        return found._replace(chosen=tuple(one._replace(codec=codec) for one, codec in pairs))

    auto_compression.choose_each = choose_each


@on_ranks(2, 4, starts=False, env={"AIACC_TEST_PACE_BYTES": "4000000"})
def test_ranks_choose_alike():
    join_as({"2": "ab", "4": "aabb"}[os.environ["AIACC_SIZE"]])
    job = _Auto()
    start = job.model[0].weight.detach().clone()
    job.step(_STEPS)
    assert not torch.equal(start, job.model[0].weight)
    check_same_everywhere(job.model)
    job.optimizer.feedback.flush()
    job.step()
    assert not job.keeps
    assert hvd.allgather_object(job.codecs) == [job.codecs] * hvd.size()


@on_ranks(2)
def test_every_bucket_travels_as_was_chosen_for_it():
    """Three buckets that travel in three ways; then steps get slower."""
    seen = []

    def chosen(buckets):
        seen.append(buckets)
        return [MSTopK(density=0.1), BF16, Quantised("int8"), NONE]

    _pretend(chosen=chosen)
    auto_compression.FUSED_BYTES = 160 * 160 * 4
    auto_compression.WATCHED = 2
    job = _Auto().settle()
    assert seen == ([[160 * 160] * 4] if hvd.rank() == 0 else [])
    assert job.codecs == {
        **dict.fromkeys([f"{layer}.bias" for layer in range(4)], "none"),
        "3.weight": "mstopk:density=0.1",  # its gradient comes first
        "2.weight": "bf16",
        "1.weight": "int8",
        "0.weight": "none",
    }
    lines = [line for line in job.said.splitlines() if "compression" in line]
    assert len(lines) == (hvd.rank() == 0)
    for line in lines:
        assert "compression: keeps the predicted mix: " in line
        assert " on 2 x 1 ranks, predicted " in line
        assert "(measured steps: none 1 s, bf16 1 s, predicted mix 0.5 s)" in line
    job.step()
    assert set(job.optimizer.feedback.residuals) == {"3.weight"}
    assert job.keeps
    check_same_everywhere(job.model)
    _Watch.good = False
    job.settle(until=False).settle()
    assert len(seen) == 2 * (hvd.rank() == 0), "measured anew"
    assert set(job.codecs.values()) == {"none"}
    job.step()
    assert not job.keeps
    check_same_everywhere(job.model)


@on_ranks(2)
def test_ranks_that_come_anew_go_along():
    """After `init` some ranks have residuals of a choice that others never made."""
    codecs = [MSTopK(density=0.1)]
    _pretend(chosen=lambda buckets: codecs * len(buckets))
    job = _Auto()
    job.step(_STEPS)
    assert job.keeps
    hvd.shutdown()
    codecs[0] = Quantised("int8")
    hvd.init()
    if hvd.rank() == 1:
        job = _Auto()
    job.step(_STEPS)
    assert "int8" in job.codecs.values()
    assert not job.optimizer.feedback.residuals


@on_ranks(2)
def test_a_copy_chooses_anew():
    _pretend((1e-4, 1e-6))
    job = _Auto("auto:mstopk").settle()
    job.step()
    assert job.optimizer.feedback.residuals
    other = copy.deepcopy(job)
    assert set(other.codecs.values()) == {"none"}
    other.step()
    assert not other.keeps
    other.settle()
    assert other.codecs == job.codecs
    check_same_everywhere(other.model)


@on_ranks(2)
def test_users_say_what_may_be_chosen():
    """Nothing but what the user names is tried, chosen or measured."""
    _pretend(_SLOW, watch=CompressionWatch)
    visited = set()
    job = _Auto("auto:int8:block=512")
    while not job.found._watch.settled:
        visited.add(job.found._watch.current)
        job.step()
    assert visited == {"none", MIX}
    assert {str(codec) for _, codec in job.found._chosen} == {"int8:block=512"}
    hvd.barrier()
    text = ("auto:int8", "auto:bf16")[hvd.rank()]
    job = _Auto(text)
    with pytest.raises(ValueError, match=rf"different compression: .*this one '{text}"):
        job.step()
    hvd.barrier()


@on_ranks(4)
def test_a_process_set_counts_its_own_hosts():
    """Ranks of a set lie on hosts in another way than those of the job."""
    _pretend(hosts="aabb", watch=CompressionWatch)
    across = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])]
    inside = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    seen = []

    def choose_each(buckets, cluster, *args, **options):
        seen.append((cluster.hosts, cluster.local))
        return buckets_of_a_job.choose_each(buckets, cluster, *args, **options)

    auto_compression.choose_each = choose_each
    for sets in (across, inside):
        (mine,) = [one for one in sets if one.included()]
        job = _Auto(process_set=mine)
        while job.found._chosen is None:
            job.step()
        assert seen == ([(2, 1)] if hvd.rank() < 2 else []), "the first rank of each set decides"
    hvd.barrier()


#: Hosts, engine, costs that each rank sees (None: it knows none), descriptors that rank 1 may open.
_DECISIONS = [
    ("ab", "auto", (_SLOW, _SLOW), None, "mix: int8 for 1 bucket"),
    # A rank that waits for another does not decide.
    ("ab", "auto", (_SLOW, _FAST), None, "mix: none for 1 bucket"),
    ("ab", "auto", (_FAST, _SLOW), None, "mix: none for 1 bucket"),
    ("ab", "auto", (_SLOW, None), None, "these steps send nothing that compression would shorten"),
    # Codes need more sockets.
    ("ab", "auto", (_SLOW, _SLOW), 70, "mix: none for 1 bucket"),
    # Only those that share no memory choose.
    ("aa", "auto", (_SLOW, _SLOW), None, "all ranks share one host, where nothing is coded"),
    ("aa", "tcp", (_SLOW, _SLOW), None, " on 2 x 1 ranks, predicted "),
]


@on_ranks(2)
def test_what_all_ranks_see_decides():
    free = auto_compression._free_descriptors
    assert 0 < free() <= 1 << 20
    for hosts, engine, costs, descriptors, text in _DECISIONS:
        os.environ["AIACC_ENGINE"] = engine
        _pretend(hosts=hosts)
        mine = costs[hvd.rank()]

        def fit_steps(steps, mine=mine):
            if mine is None:
                raise ValueError("no operations")
            return mine

        auto_compression.fit_steps = fit_steps
        auto_compression.busy_s = lambda steps, mine=mine: sum(mine or (0.0, 0.0))
        few = descriptors if hvd.rank() == 1 else None
        auto_compression._free_descriptors = lambda few=few: free() if few is None else few
        job = _Auto("auto:int8").settle()
        assert (text in job.said) == (hvd.rank() == 0), (text, job.said)
        assert "two_level" not in job.said
        if (hosts, engine) == ("aa", "auto"):
            job.step()
            assert set(job.codecs.values()) == {"none"}


@on_ranks(2)
def test_a_choice_that_fails_lets_nobody_wait():
    def chosen(buckets):
        raise MemoryError("no room")

    _pretend(_SLOW, chosen=chosen)
    job = _Auto().settle()
    job.step(3)
    assert set(job.codecs.values()) == {"none"}
    said = "compression: choosing failed, MemoryError: no room"
    assert (said in job.said) if hvd.rank() == 0 else (job.said == "")


@on_ranks(2)
def test_it_waits_for_the_number_of_lanes():
    _pretend(_SLOW, watch=CompressionWatch)
    searches = [hvd.rank() == 1]
    tuner.searches = lambda: searches[0]
    job = _Auto()
    job.step(30)
    assert job.found._chosen is None
    searches[0] = False
    job.settle()
    assert job.found._chosen
