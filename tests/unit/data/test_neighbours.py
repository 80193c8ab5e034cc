"""Who sends what to whom, and how it travels."""

import numpy as np
import pytest

from aiacc.data.neighbours import Plan, pack, unpack
from aiacc.data.orders import Epoch, lists, owners


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
            own = plan.own(reader, begin, begin + 7)
            assert all(owner[index] == nodes[reader] for index in own)
            assert sorted([index for _, index in came] + own) == sorted(part)


def test_the_ranks_of_a_node_send_alike():
    epoch = Epoch(10_000, 1, 2, "neighbour", True, False)
    plan = Plan(lists(epoch, (2, 2)), owners(epoch, (2, 2)), (2, 2))
    sent = [sum(map(len, plan.sends(rank, 0, 10_000))) for rank in range(4)]
    assert sum(sent) > 4500
    assert max(sent) < 1.1 * min(sent)


def test_messages_come_back():
    records = [(bytes([n]) * 16, bytes(range(n))) for n in range(5)]
    found = unpack(memoryview(pack(records[:2]) + pack([]) + pack(records[2:])))
    assert [(key, bytes(record)) for key, record in found] == records


@pytest.mark.parametrize("cut", [1, 10, 24, 30])
def test_halves_of_messages_are_refused(cut):
    message = pack([(b"k" * 16, b"record of some length")])
    with pytest.raises(ValueError, match="message of records"):
        list(unpack(memoryview(message)[:cut]))
