"""Orders, shards and what is left of an epoch; and who sends what to whom."""

import dataclasses
import itertools
import random

import numpy as np
import pytest

from aiacc.data.neighbours.rounds import Message, Plan, odd_ones
from aiacc.data.orders import (
    SHARDS,
    Epoch,
    Part,
    Topology,
    decode_state,
    encode_state,
    kept,
    lists,
    owners,
    shuffled,
)
from tests.support.footprint import peak_bytes

TOPOLOGIES = [(1,), (2,), (1, 1), (2, 2), (3, 1), (1, 2, 3)]


def epoch(length=100, number=0, shard="replicas", **others):
    fields = {"seed": 7, "shuffle": True, "drop_last": False, **others}
    return Epoch(length=length, number=number, shard=shard, **fields)


def test_the_order_of_a_seed_is_the_same_for_ever():
    assert shuffled(10, 0, 0).tolist() == [4, 8, 0, 1, 7, 6, 2, 5, 3, 9]
    assert sorted(shuffled(1000, 3, 5)) == list(range(1000))
    pairs = itertools.product(range(9), range(9))
    assert len({tuple(shuffled(10, *pair)) for pair in pairs}) == 81
    assert shuffled(0, 0, 0).tolist() == []


def test_an_order_needs_memory_for_two_numbers_of_each_sample():
    assert peak_bytes(lambda: shuffled(100_000, 1, 2)) < 2.1 * 8 * 100_000


@pytest.mark.parametrize("shard", SHARDS)
def test_the_lists_of_some_ranks_are_those_of_all(shard):
    every = lists(epoch(101, shard=shard), (3, 1, 2))
    some = lists(epoch(101, shard=shard), (3, 1, 2), ranks=(4, 0))
    assert [one.tolist() for one in some] == [every[4].tolist(), every[0].tolist()]
    assert all(one.base is None or len(one.base) == len(one) for one in some)  # nor hold the others


@pytest.mark.parametrize("sizes", TOPOLOGIES)
def test_shards_of_nodes_stay_with_them(sizes):
    owner = owners(epoch(96, shard="node"), sizes)
    assert np.bincount(owner).tolist() == [96 // sum(sizes) * ranks for ranks in sizes]
    orders = set()
    for number in range(3):
        found = lists(epoch(96, number, shard="node"), sizes)
        ranks = iter(found)
        for node, count in enumerate(sizes):
            mine = np.concatenate(list(itertools.islice(ranks, count)))
            assert set(owner[mine]) == {node}
        orders.add(tuple(found[0]))
    assert len(orders) == 3


def test_shards_change_as_often_as_they_should_and_without_shuffle_indices_ascend():
    found = [owners(epoch(96, n, "node", reshard_every=2), (1, 1)).tolist() for n in range(4)]
    assert found[0] == found[1] != found[2] == found[3]
    found = lists(epoch(10, shuffle=False), (1, 1))
    assert [one.tolist() for one in found] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.parametrize("shard", SHARDS)
def test_any_numbers_of_ranks_take_up_an_epoch_and_every_sample_comes_once(shard):
    chance = random.Random(shard)
    for number in range(200):
        this = epoch(chance.randrange(0, 200), chance.randrange(5), shard)
        parts, read = [], set()
        for _ in range(number % 4):
            sizes = chance.choice(TOPOLOGIES)
            found = lists(this, sizes, parts)
            taken = chance.randrange(len(found[0]) + 1)
            parts.append(Part(sizes, taken))
            now = {int(index) for one in found for index in one[:taken]}
            assert not now & read
            read |= now
        sizes = chance.choice(TOPOLOGIES)
        rest, size = set(range(this.length)) - read, sum(sizes)
        found = lists(this, sizes, parts)
        assert {len(one) for one in found} == {-(-len(rest) // size)}
        assert set(np.concatenate(found).tolist()) == rest
        if not parts:
            fewer = lists(dataclasses.replace(this, drop_last=True), sizes)
            assert {len(one) for one in fewer} == {len(rest) // size}
            assert len({*np.concatenate(fewer).tolist()}) == len(rest) // size * size
        assert decode_state(encode_state(this, parts)) == (this, parts)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("length", 40.0), ("seed", None), ("number", -1), ("number", "x"), ("reshard_every", -1)),
        *(("shard", "x"), ("shuffle", "yes"), ("drop_last", None), ("parts", 3), ("parts", [3])),
        *(("parts", [[[1], value]]) for value in (-3, 1.5, "3", None)),
        *(("parts", [[sizes, 3]]) for sizes in ([], [0], [-1, 2], ["a"], [1.5])),
    ],
)
def test_states_of_nonsense_are_refused(name, value):
    state = encode_state(Epoch(40, np.int64(1), np.int64(2), "node", True, False), [Part((2,), 5)])
    assert all(type(state[field]) is int for field in ("length", "seed", "number"))
    decode_state(state)
    with pytest.raises(ValueError, match=r"expected"):
        decode_state({**state, name: value})
    with pytest.raises(ValueError, match=r"expected \['drop_last'"):
        decode_state({"epoch": 3})


@pytest.mark.parametrize("shard", ["replicas", "node"])
@pytest.mark.parametrize("sizes", TOPOLOGIES)
def test_the_ranks_of_a_node_bring_what_it_keeps(shard, sizes):
    this = epoch(50, shard=shard)
    for node, count in enumerate(sizes):
        brought = [kept(this, Topology(sizes, node, local)) for local in range(count)]
        everything = np.concatenate(brought).tolist()
        expected = range(50) if shard == "replicas" else np.flatnonzero(owners(this, sizes) == node)
        assert sorted(everything) == list(expected)


def test_topologies():
    place = Topology((2, 3), 1, 2)
    assert (place.size, place.rank, place.nodes.tolist()) == (5, 4, [0, 0, 1, 1, 1])
    wrong = [((2,), 1, 0), ((2,), 0, 2), ((), 0, 0), ((2, 0), 0, 0), ((1,), 0, -1)]
    for sizes, node, local in wrong:
        with pytest.raises(ValueError, match=r"expected one of the nodes"):
            Topology(sizes, node, local)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 1), (1, 2, 2)])
def test_every_sample_comes_once_from_the_node_that_keeps_it(sizes):
    epoch = Epoch(90, 1, 2, "neighbour", True, False)
    everyones, owner = lists(epoch, sizes), owners(epoch, sizes)
    plan = Plan(everyones, owner, sizes)
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    for begin in range(0, len(everyones[0]), 7):
        sends = [plan.sends(rank, begin, begin + 7) for rank in range(sum(sizes))]
        for reader, samples in enumerate(everyones):
            part = samples[begin : begin + 7].tolist()
            came = [(sender, index) for sender, sent in enumerate(sends) for index in sent[reader]]
            assert all(owner[index] == nodes[sender] != nodes[reader] for sender, index in came)
            assert {index: who for who, index in came} == plan.lenders(reader, begin, begin + 7)
            own = [index for index in part if owner[index] == nodes[reader]]
            assert sorted([index for _, index in came] + own) == sorted(part)


def test_the_ranks_of_a_node_send_alike():
    epoch = Epoch(10_000, 1, 2, "neighbour", True, False)
    plan = Plan(lists(epoch, (2, 2)), owners(epoch, (2, 2)), (2, 2))
    sent = [sum(map(len, plan.sends(rank, 0, 10_000))) for rank in range(4)]
    assert sum(sent) > 4500
    assert max(sent) < 1.1 * min(sent)


def test_ranks_whose_samples_differ_are_those_that_differ_from_most():
    found = [odd_ones(digests) for digests in ([5, 5], [5, 6], [6, 5, 5], [5, 6, 7], [1])]
    assert found == [[], [1], [0], [1, 2], []]


def test_messages_come_back_and_halves_are_refused():
    for count in range(4):
        records = [(bytes([n]) * 16, n % 2 == 1, bytes(range(n))) for n in range(count)]
        found = Message.unpack(memoryview(Message(7, count == 2, records).pack()))
        assert (found.number, found.is_full) == (7, count == 2)
        assert [(key, stays, bytes(record)) for key, stays, record in found.records] == records
    message = Message(1, False, [(b"k" * 16, True, b"record of some length")]).pack()
    for cut in (0, 1, 8, 10, 33, 40, 50):
        with pytest.raises(ValueError, match="message of records"):
            Message.unpack(memoryview(message)[:cut])
