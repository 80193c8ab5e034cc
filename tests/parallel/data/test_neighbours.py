"""Samples that come from the node that keeps them: ranks of pretended nodes, each with its
memory."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import aiacc.array as hvd
from aiacc.data import CachedDataset, Topology
from tests.support.ranks import run_ranks

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


def on_two_nodes(function):
    """``function(place, cached, *others)`` in a job of two ranks, each a node of its own.

    It is called with the folder and a size of memory, or None, first.
    """

    @functools.wraps(function)
    def call(folder, size, *others):
        hvd.init()
        place = _place((1, 1))
        cached = _open(folder, place, size)
        result = function(place, cached, *others)
        hvd.barrier()
        hvd.shutdown()
        cached.close()
        return result

    return call


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


def _epochs(folder, sizes):
    hvd.init()
    place = _place(sizes)
    cached = _open(folder, place)
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
    hvd.barrier()
    cached.close()
    hvd.shutdown()
    return place.local_rank, taken, epochs


def test_every_sample_is_fetched_once_by_all_nodes_together(tmp_path):
    found = run_ranks(3, _epochs, str(tmp_path), (2, 1))
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
    """Answers on one node only while somebody has the gate open for writing."""

    def __init__(self, gate):
        self.gate = gate

    def __getitem__(self, index):
        if self.gate is not None:
            with Path(self.gate).open("rb"):
                pass
        return super().__getitem__(index)


def _one_origin_stands_still(gate, folder):
    hvd.init()
    place = _place((1, 1))
    cached = _open(folder, place, origin=Gated(None if place.node else gate))
    sampler = cached.sampler(seed=1, ahead=SAMPLES, topology=place)
    if place.node:
        assert _read(cached, sampler)
        with Path(gate).open("wb"):  # once the other one asks
            hvd.barrier()
    else:
        assert _read(cached, sampler)
        hvd.barrier()
    sampler.set_epoch(1)
    assert _read(cached, sampler)
    hvd.barrier()
    fetched = cached.statistics().fetched
    hvd.barrier()
    hvd.shutdown()
    cached.close()
    return fetched


def test_nobody_waits_for_what_another_one_fetches(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    assert run_ranks(2, _one_origin_stands_still, str(gate), str(tmp_path)) == [SAMPLES // 2] * 2


@on_two_nodes
def _with_little_memory(place, cached):
    sampler = cached.sampler(seed=1, ahead=8, topology=place)
    return [_counted(cached, sampler, number) for number in range(3)]


def test_what_a_node_has_no_room_for_is_fetched_by_its_readers(tmp_path):
    found = run_ranks(2, _with_little_memory, str(tmp_path), "150kB")
    for nodes in zip(*found, strict=True):
        assert sum(one.samples for one in nodes) == SAMPLES
        assert sum(one.refused for one in nodes) > 0
    for nodes in list(zip(*found, strict=True))[1:]:
        assert 0 < sum(one.fetched for one in nodes) < SAMPLES
        assert sum(one.received for one in nodes) < SAMPLES / 2  # hardly any goes home in vain


@on_two_nodes
def _broken_off(place, cached):
    sampler = cached.sampler(seed=1, ahead=8, topology=place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count, index in enumerate(sampler, 1):
            assert _read(cached, [index])
            if count == (12 if place.node else 5):
                break
        return [_counted(cached, sampler, number) for number in range(1, 4)][-1]


def test_after_an_epoch_broken_off_at_different_places_the_next_is_as_ever(tmp_path):
    found = run_ranks(2, _broken_off, str(tmp_path), "4MB")
    assert sum(one.fetched for one in found) == 0
    assert sum(one.received for one in found) > SAMPLES / 4


@on_two_nodes
def _one_leaves(place, cached):
    sampler = cached.sampler(ahead=5, topology=place, patience_s=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count, index in enumerate(sampler):
            assert _read(cached, [index])
            if place.node and count == 3:
                break
    return count + 1, [str(one.message) for one in caught]


def test_a_rank_that_leaves_an_epoch_is_not_waited_for(tmp_path):
    (left, _), (stayed, said) = sorted(run_ranks(2, _one_leaves, str(tmp_path), "4MB"))
    assert (left, stayed) == (4, SAMPLES // 2)
    assert any("read equally many samples" in text for text in said)


def _alone():
    place = Topology((1, 1), 0, 0)
    cached = CachedDataset(Origin(), memory="1MB", shard="neighbour")
    try:
        cached.sampler(topology=place)
    except ValueError as error:
        return str(error), sorted(cached.sampler()) == list(range(SAMPLES))
    finally:
        cached.close()


def _without_memory(folder):
    hvd.init()
    cached = CachedDataset(Origin(), None, (folder, "1MB"), shard="neighbour")
    try:
        cached.sampler(topology=_place((1, 1)))
    except ValueError as error:
        return str(error)
    finally:
        cached.close()
        hvd.shutdown()


def test_no_memory_is_refused(tmp_path):
    for said in run_ranks(2, _without_memory, str(tmp_path)):
        assert "without memory= (expected some" in said


def test_a_job_of_another_size_is_refused():
    said, is_whole = run_ranks(1, _alone)[0]
    assert "a topology of 2 ranks in a job of 1" in said
    assert is_whole
