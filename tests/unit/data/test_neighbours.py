"""Who sends what to whom, and how it travels."""

import numpy as np
import pytest

from aiacc.data.neighbours.rounds import Message, Plan
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
            assert {index: sender for sender, index in came} == plan.lenders(
                reader, begin, begin + 7
            )
            own = [index for index in part if owner[index] == nodes[reader]]
            assert sorted([index for _, index in came] + own) == sorted(part)


def test_the_ranks_of_a_node_send_alike():
    epoch = Epoch(10_000, 1, 2, "neighbour", True, False)
    plan = Plan(lists(epoch, (2, 2)), owners(epoch, (2, 2)), (2, 2))
    sent = [sum(map(len, plan.sends(rank, 0, 10_000))) for rank in range(4)]
    assert sum(sent) > 4500
    assert max(sent) < 1.1 * min(sent)


def test_messages_come_back():
    for count in range(4):
        records = [(bytes([n]) * 16, n % 2 == 1, bytes(range(n))) for n in range(count)]
        found = Message.unpack(memoryview(Message(7, count == 2, records).pack()))
        assert (found.number, found.is_full) == (7, count == 2)
        assert [(key, stays, bytes(record)) for key, stays, record in found.records] == records


@pytest.mark.parametrize("cut", [0, 1, 8, 10, 33, 40, 50])
def test_halves_of_messages_are_refused(cut):
    message = Message(1, False, [(b"k" * 16, True, b"record of some length")]).pack()
    with pytest.raises(ValueError, match="message of records"):
        Message.unpack(memoryview(message)[:cut])
