"""Samplers of a cached dataset: torch's, torchdata's and its own, and what comes ahead of them."""

import io
import itertools
import logging
import multiprocessing

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from aiacc.data import CachedDataset, Topology
from aiacc.data.ahead import how_far, how_far_together
from aiacc.data.warmup import Bar
from tests.support.wrong_arguments import unexplained

FORK = multiprocessing.get_context("fork")


class Numbers:
    """Samples are their indices; counts fetches of all processes."""

    def __init__(self, length=24):
        self.length = length
        self.fetches = FORK.Value("i", 0)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with self.fetches:
            self.fetches.value += 1
        return torch.tensor(index)


@pytest.fixture
def cached(opened):
    return opened(Numbers(), fingerprint="numbers")


def ranks_of(cached, sizes, **others):
    places = [(node, local) for node, count in enumerate(sizes) for local in range(count)]
    return [cached.sampler(topology=Topology(sizes, *place), **others) for place in places]


def test_epochs_are_orders_of_their_own(cached):
    sampler = cached.sampler(seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(cached.sampler(seed=4)) != first
    assert sorted(first) == list(cached.sampler(shuffle=False)) == list(range(24))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("before", "after"), [((1, 1), (1,)), ((1,), (2, 1)), ((2, 2), (2, 2))])
def test_another_number_of_ranks_goes_on_in_the_middle_of_an_epoch(cached, workers, before, after):
    states, read = set(), []
    for sampler in ranks_of(cached, before):
        sampler.set_epoch(2)
        loader = DataLoader(cached, batch_size=2, sampler=sampler, num_workers=workers)
        batches = iter(loader)
        read += [number for _ in range(2) for number in next(batches).tolist()]
        del batches
        states.add(str(sampler.state_dict(consumed=4)))
    assert len(states) == 1  # equal on all ranks
    state = sampler.state_dict(consumed=4)
    rest = []
    for sampler in ranks_of(cached, after, seed=99):
        sampler.load_state_dict(state)
        sampler.set_epoch(2)
        assert len(DataLoader(cached, sampler=sampler)) == len(sampler)
        rest += list(sampler)
        assert len(list(sampler)) == 24 // sum(after)  # the next iteration is a whole epoch
    assert len(read) == len(set(read))
    assert set(rest) == set(range(24)) - set(read)
    assert len(rest) < len(set(rest)) + sum(after)  # some fill up


def test_a_state_at_the_end_has_nothing_left(cached):
    sampler = cached.sampler()
    list(sampler)
    later = cached.sampler()
    # As the sampler has counted, and as batches * batch_size are, the last of which is half full.
    for state in (sampler.state_dict(), sampler.state_dict(consumed=32)):
        later.load_state_dict(state)
        assert list(later) == []
    later.set_epoch(1)
    assert sorted(later) == list(range(24))
    assert sampler.state_dict(consumed=np.int64(8)) == sampler.state_dict(consumed=8)
    for wrong in (-1, 1.5, "8"):
        with pytest.raises(ValueError, match=r"consumed=.*expected how many"):
            sampler.state_dict(consumed=wrong)


def test_states_of_others_are_refused(cached, opened):
    state = cached.sampler().state_dict()
    other = opened(Numbers(), fingerprint="others")
    for mine in (other, other.sampler()):
        with pytest.raises(ValueError, match=r"a state of dataset .* \(expected"):
            mine.load_state_dict(state)
    shorter = opened(Numbers(23), fingerprint="numbers")
    with pytest.raises(ValueError, match=r"24 samples \(expected 23\)"):
        shorter.sampler().load_state_dict(state)
    cached.load_state_dict(cached.state_dict())


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 6])
def test_stateful_data_loader_of_torchdata(cached, workers, ahead):
    def loader():
        sampler = cached.sampler(ahead=ahead)
        sampler.set_epoch(1)
        return StatefulDataLoader(cached, batch_size=3, sampler=sampler, num_workers=workers)

    first = loader()
    batches = iter(first)
    read = [next(batches).tolist() for _ in range(3)]
    state = first.state_dict()
    expected = read + [batch.tolist() for batch in batches]
    later = loader()
    later.load_state_dict(state)
    assert read + [batch.tolist() for batch in later] == expected
    assert sorted(itertools.chain(*expected)) == list(range(24))


def test_distributed_sampler_of_torch(cached):
    read = []
    for rank in range(2):
        sampler = DistributedSampler(cached, num_replicas=2, rank=rank)
        ahead = cached.fetching_ahead(sampler, 4)
        ahead.set_epoch(1)
        assert sampler.epoch == 1
        loader = DataLoader(cached, batch_size=3, sampler=ahead, num_workers=1)
        assert len(loader) == 4
        read += [number for batch in loader for number in batch.tolist()]
        ahead.close()
    assert sorted(read) == list(range(24))


class Together(Numbers):
    """Answers nobody before so many ask at a time, in whatever processes; 0 is asked alone."""

    def __init__(self, parties):
        super().__init__()
        self.parties = parties
        self.waiting = FORK.Value("i", 0)
        self.enough = FORK.Event()

    def __getitem__(self, index):
        with self.waiting:
            self.waiting.value += 1
            if self.waiting.value == self.parties:
                self.enough.set()
        assert index == 0 or self.enough.wait(60)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_epoch_has_more_requests_in_flight_than_workers(workers, opened):
    """One of the reasons for which torch has no such cache: it gains nothing in epoch 1."""
    cached = opened(Together(8), fingerprint="numbers", requests=8)
    cached._store.count("compared", 3)
    sampler = cached.sampler(ahead=12)
    loader = DataLoader(cached, batch_size=1, sampler=sampler, num_workers=workers)
    read = [number for batch in loader for number in batch.tolist()]
    assert sorted(read) == list(range(24))
    found = cached.statistics()
    assert found.fetched == cached.dataset.fetches.value == 24  # nobody fetched what another did
    assert found.ahead >= 7
    assert found.samples == 24


def test_a_fetcher_may_be_spawned_and_a_dead_one_is_not_missed(cached, opened):
    sampler = cached.fetching_ahead(range(24), 4)
    numbers = iter(sampler)
    read = [int(cached[next(numbers)]) for _ in range(3)]
    sampler._fetcher._process.kill()
    sampler._fetcher._process.join()
    read += [int(cached[number]) for number in numbers]
    assert read == list(sampler) == list(range(24))
    sampler.close()
    spawned = opened(list(range(24)), requests=2)
    sampler = spawned.fetching_ahead(range(24), 24, start_method="spawn")
    assert [spawned[number] for number in sampler] == list(range(24))
    sampler.close()


def test_what_does_not_stay_is_fetched_ahead_into_a_window(opened):
    class Large(Numbers):
        def __getitem__(self, index):
            super().__getitem__(index)
            return torch.full((10_000,), index, dtype=torch.uint8)

    cached = opened(Large(200), fingerprint="numbers", requests=2)
    for index in range(200):
        cached[index]
    before = cached.statistics()
    assert before.refused > 50
    missing = [n for n in range(200) if not cached._store.in_memory(cached._source.key(n))]
    for index in missing:
        cached._source.bring(index)  # as the process that fetches ahead does
        assert cached[index].tolist() == [index] * 10_000
    found = cached.statistics().since(before)
    assert found.samples == found.fetched == found.ahead == len(missing)  # each once
    assert found.refused == 0


def test_how_far():
    assert how_far(100, 10**6, 0) == 100
    assert how_far(100, 10**6, 10**5) == 7
    assert how_far(100, 10**9, 10**5) == 100
    assert how_far(100, 0, 10**5) == 100
    # Two ranks that share a window, half of whose samples pass through it.
    assert how_far_together(100, 10**6, 0, 2, 0.5, 0) == 100
    assert how_far_together(100, 10**6, 10**5, 2, 0.5, 0) == 7
    assert how_far_together(100, 10**6, 10**5, 2, 0.5, 5) == 2
    assert how_far_together(100, 10**6, 10**5, 2, 0.5, 1000) == 1
    assert how_far_together(100, 10**9, 10**5, 2, 0.5, 50) == 100
    assert how_far_together(100, 0, 10**5, 2, 0.5, 50) == 100  # nothing but a disk


def test_epochs_are_logged_in_a_line(cached, caplog):
    caplog.set_level(logging.INFO, "aiacc.data")
    first, second = ranks_of(cached, (2,))
    for number in range(3):
        second.set_epoch(number)
        first.set_epoch(number)
        for index in [*first, *second]:
            cached[index]
    first.set_epoch(3)
    lines = [record.message for record in caplog.records]
    assert [line[:15] for line in lines] == [f"[data] epoch {number}:"[:15] for number in range(3)]
    assert "24 samples" in lines[1]
    assert "24 from memory" in lines[2]


@pytest.mark.parametrize("shard", ["replicas", "node"])
def test_warmup_brings_what_the_node_keeps(shard, capsys, opened):
    cached = opened(Numbers(), fingerprint="numbers", shard=shard, requests=4)
    seen = []
    places = [Topology((2, 1), 0, local) for local in range(2)]
    for place in places:
        cached.warmup(topology=place, seed=5, progress=lambda *now: seen.append(now))
    mine = 24 if shard == "replicas" else 16
    assert cached.statistics().fetched == cached.statistics().ahead == mine
    assert cached.statistics().samples == 0
    assert seen[-1] == (mine // 2, mine // 2)
    for place in places:
        for index in cached.sampler(topology=place, seed=5):
            cached[index]
    assert cached.statistics().fetched == mine
    assert cached.statistics().hit_ratio == 1
    assert capsys.readouterr() == ("", "")


def test_warmup_of_some(cached, opened):
    found = cached.warmup([3, 4, 3])
    assert (found.fetched, found.ahead) == (2, 2)
    assert cached.warmup([-1, 23]).fetched == 1
    with pytest.raises(IndexError, match="sample 24 of a dataset of 24"):
        cached.warmup([5, 24])
    assert cached.statistics().fetched == 3
    with pytest.raises(KeyError):  # as the data set does
        opened({"no": 1, "index": 2}, requests=3).warmup()


def test_the_bar():
    stream = io.StringIO()
    bar = Bar("filling", stream)
    for done in range(1, 1001):
        bar(done, 1000)
    drawn = stream.getvalue().split("\r")
    assert len(drawn) == 102  # once for each per cent, after an empty string
    assert drawn[51] == f"filling [{'#' * 20}{'.' * 20}]  50 % of 1000"
    assert drawn[-1].endswith("100 % of 1000\n")


@pytest.mark.parametrize(
    ("memory", "arguments", "said"),
    [
        ("1MB", {"topology": (2, 2, 1)}, r"topology=.2, 2, 1. .expected aiacc.data.Topology"),
        (None, {"ahead": 8}, "without memory= and disk="),
    ],
)
def test_bad_arguments_are_named(tmp_path, memory, arguments, said):
    cached = CachedDataset(Numbers(), memory and (tmp_path, memory), fingerprint="numbers")
    with pytest.raises(ValueError, match=said):
        cached.sampler(**arguments)
    for function, given in (
        (cached.sampler, {}),
        (cached.sampler().set_epoch, {}),
        (cached.fetching_ahead, {"sampler": []}),
        (cached.warmup, {}),
        (cached.log_epoch, {}),
    ):
        assert unexplained(function, given, {}) == []
    cached.close()
