"""Samples that come from the node that keeps them; ranks pretend to be on nodes of their own."""

import contextlib
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import aiacc.array as hvd
from aiacc.data import CachedDataset, Topology
from tests.support.jobs import on_ranks

SAMPLES = 60


class Origin:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.from_numpy(np.random.default_rng(index).integers(0, 256, 500))


def _place(sizes):
    places = [(node, local) for node, count in enumerate(sizes) for local in range(count)]
    # The other way round than the job numbers its ranks.
    return Topology(sizes, *places[hvd.size() - 1 - hvd.rank()])


def _open(folder, place, size="4MB", origin=None):
    memory = Path(folder) / f"node{place.node}"
    memory.mkdir(exist_ok=True)
    return CachedDataset(
        origin or Origin(), (memory, size), shard="neighbour", requests=4, fingerprint="o"
    )


@contextlib.contextmanager
def _node(folder, sizes=(1, 1), **options):
    """The place of this rank among nodes of so many ranks each, and what its node keeps."""
    place = _place(sizes)
    cached = _open(folder, place, **options)
    yield place, cached
    hvd.barrier()
    cached.close()


def _read(cached, indices):
    return all(torch.equal(cached[index], Origin()[index]) for index in indices)


def _counted(cached, sampler, number, read=_read):
    """Read an epoch; what this rank's node has counted in it."""
    hvd.barrier()
    before = cached.statistics()
    hvd.barrier()
    sampler.set_epoch(number)
    assert read(cached, sampler)
    hvd.barrier()
    return cached.statistics().since(before)


@on_ranks(3)
def test_every_sample_is_fetched_once_by_all_nodes_together(tmp_path):
    with _node(tmp_path, (2, 1)) as (place, cached):
        sampler = cached.sampler(seed=1, ahead=8, topology=place)
        taken = []

        def read(cached, sampler):
            taken.append(list(sampler))
            return _read(cached, taken[-1])

        def by_a_loader(cached, sampler):
            loader = DataLoader(cached, batch_size=4, sampler=sampler, num_workers=1)
            taken.append([int(sample.sum()) for batch in loader for sample in batch])
            return True

        epochs = [_counted(cached, sampler, n, read if n < 2 else by_a_loader) for n in range(3)]
    found = hvd.allgather_object((place.local_rank, taken, epochs))
    sums = sorted(int(Origin()[index].sum()) for index in range(SAMPLES))
    for number, wanted in enumerate([list(range(SAMPLES))] * 2 + [sums]):
        assert sorted(one for _, taken, _ in found for one in taken[number]) == wanted
    nodes = [epochs for local, _, epochs in found if local == 0]
    assert len(nodes) == 2
    for number in range(3):
        fetched = sum(epochs[number].fetched for epochs in nodes)
        assert fetched == (SAMPLES if number == 0 else 0)
        assert sum(epochs[number].received for epochs in nodes) > SAMPLES / 4
        assert sum(epochs[number].samples for epochs in nodes) == SAMPLES
    assert list(tmp_path.glob("node*/*")) == []


class Gated(Origin):
    """Answers on one node only while somebody has the gate open for writing; 0 at once."""

    def __init__(self, gate):
        self.gate = gate

    def __getitem__(self, index):
        if self.gate is not None and index:
            with Path(self.gate).open("rb"):
                pass
        return super().__getitem__(index)


@on_ranks(2)
def test_nobody_waits_for_what_another_one_fetches(tmp_path):
    gate = tmp_path / "gate"
    if hvd.rank() == 0:
        os.mkfifo(gate)
    hvd.barrier()
    with _node(tmp_path, origin=Gated(None if _place((1, 1)).node else gate)) as (place, cached):
        sampler = cached.sampler(seed=1, ahead=SAMPLES, topology=place)
        assert _read(cached, sampler)
        if place.node:
            with gate.open("wb"):  # once the other one asks
                hvd.barrier()
        else:
            hvd.barrier()
        sampler.set_epoch(1)
        assert _read(cached, sampler)
        hvd.barrier()
        assert cached.statistics().fetched == SAMPLES // 2


class Odd(Origin):
    def __getitem__(self, index):
        return super().__getitem__(index) + 1


@on_ranks(3)
def test_ranks_with_other_samples_of_an_equal_fingerprint_are_told(tmp_path):
    origin = Odd() if hvd.rank() == 1 else Origin()
    with _node(tmp_path, (1, 1, 1), origin=origin) as (place, cached):
        sampler = cached.sampler(seed=1, topology=place)
        with pytest.warns(
            UserWarning, match="sample 0 of rank 1 is another one than that of rank 0"
        ):
            assert all(torch.equal(cached[index], origin[index]) for index in sampler)
        assert cached.statistics().received == 0


@on_ranks(2)
def test_what_a_node_has_no_room_for_is_fetched_by_its_readers(tmp_path):
    with _node(tmp_path, size="150kB") as (place, cached):
        sampler = cached.sampler(seed=1, ahead=8, topology=place)
        for number in range(3):
            nodes = hvd.allgather_object(_counted(cached, sampler, number))
            assert sum(one.samples for one in nodes) == SAMPLES
            assert sum(one.refused for one in nodes) > 0
            if number > 0:
                assert 0 < sum(one.fetched for one in nodes) < SAMPLES
                assert sum(one.received for one in nodes) < SAMPLES / 2  # hardly any in vain


@on_ranks(2)
def test_after_an_epoch_broken_off_at_different_places_the_next_is_as_ever(tmp_path):
    with _node(tmp_path) as (place, cached), warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = cached.sampler(seed=1, ahead=8, topology=place)
        for count, index in enumerate(sampler, 1):
            assert _read(cached, [index])
            if count == (12 if place.node else 5):
                break
        last = [_counted(cached, sampler, number) for number in range(1, 4)][-1]
        assert sum(one.fetched for one in hvd.allgather_object(last)) == 0
        assert sum(one.received for one in hvd.allgather_object(last)) > SAMPLES / 4


@on_ranks(2)
def test_a_rank_that_leaves_an_epoch_is_not_waited_for(tmp_path):
    with _node(tmp_path) as (place, cached), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler = cached.sampler(ahead=5, topology=place, patience_s=0.2)
        for count, index in enumerate(sampler, 1):
            assert _read(cached, [index])
            if place.node and count == 4:
                break
        assert count == (4 if place.node else SAMPLES // 2)
        said = any("read equally many samples" in str(one.message) for one in caught)
        assert said or place.node


@on_ranks(2)
def test_a_topology_of_another_size_and_no_memory_are_refused(tmp_path):
    for place, sizes, error in (
        ({"memory": (tmp_path, "1MB")}, (1, 1, 1), "a topology of 3 ranks in a job of 2"),
        ({"memory": None, "disk": (tmp_path, "1MB")}, (1, 1), r"without memory= \(expected some"),
    ):
        cached = CachedDataset(Origin(), **place, shard="neighbour")
        with pytest.raises(ValueError, match=error):
            cached.sampler(topology=Topology(sizes, hvd.rank(), 0))
        drawn = hvd.allgather_object(list(cached.sampler()))
        assert sorted(one for some in drawn for one in some) == list(range(SAMPLES))
        cached.close()
