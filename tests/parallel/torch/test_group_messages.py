"""`send` and `recv` of `torch.distributed` on the backend "aiacc", in the world and in groups."""

import os

import pytest
import torch
import torch.distributed as dist

import aiacc
from tests.support.process_group import assert_equal, in_group

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
#: Numbers of elements: none, few, and more than one write takes.
SIZES = (0, 1, 1000, 3_000_000)


def _values(source, target, count, dtype):
    generator = torch.Generator().manual_seed(10 * source + target)
    return torch.randint(0, 5, (count,), generator=generator).to(dtype)


def _received(expected, *source, **options):
    """Receive what is equal to this; the rank that it is from."""
    received = torch.full_like(expected, 7)
    sender = dist.recv(received, *source, **options)
    assert_equal(received, expected)
    return sender


@in_group(3)
def test_every_pair():
    me, size = dist.get_rank(), dist.get_world_size()
    for count in SIZES:
        for dtype in DTYPES if count < 10_000 else DTYPES[:1]:
            for source in range(size):
                for target in set(range(size)) - {source}:
                    sent = _values(source, target, count, dtype)
                    if me == source:
                        dist.send(sent, target)
                    if me == target:
                        assert _received(sent, source) == source


@in_group(2)
def test_tags_and_groups_of_the_same_ranks():
    """What is sent with a tag, or in a group, is received with no other."""
    me, other = dist.get_rank(), 1 - dist.get_rank()
    ways = [{"tag": tag} for tag in range(3)]
    ways += [{"group": dist.new_group([0, 1])} for _ in range(2)]
    # In another order than they are received in, and before anybody receives.
    works = [
        dist.isend(torch.full((5 + number,), float(me)), other, **way)
        for number, way in enumerate(ways)
    ]
    works.append(dist.isend(torch.full((5,), 10.0 + me), other, tag=0))
    for number in (2, 0, 4, 1, 3):
        _received(torch.full((5 + number,), float(other)), other, **ways[number])
    # Those of the same tag stay in order.
    received = torch.empty(5)
    work = dist.irecv(received, other)
    assert work.wait()
    assert work.is_completed()
    assert_equal(received, torch.full((5,), 10.0 + other))
    for work in works:
        assert work.wait()


@in_group(4)
def test_any_source_and_groups():
    me = dist.get_rank()
    group = dist.new_group([0, 2, 3])
    for of, members, root in ((None, [0, 1, 2, 3], 1), (group, [0, 2, 3], 2)):
        senders = [member for member in members if member != root]
        if me in senders:
            dist.send(torch.full((me + 1,), me), root, group=of, tag=me)
            dist.send(torch.tensor([me]), root, group=of, tag=9)
        if me == root:
            for sender in senders:  # the tag tells which
                expected = torch.full((sender + 1,), sender)
                assert _received(expected, group=of, tag=sender) == sender
            sources = []
            for _ in senders:  # in whatever order they come
                received = torch.empty(1, dtype=torch.int64)
                sources.append(dist.recv(received, group=of, tag=9))
                assert received.item() == sources[-1]
            assert sorted(sources) == senders
    group = dist.new_group([1, 3])
    if me == 1:
        dist.send(torch.ones(2), group=group, group_dst=1)
        dist.send_object_list(["one", {"two": 2}], dst=3, group=group)
    if me == 3:
        _received(torch.ones(2), group=group, group_src=0)
        objects = [None, None]
        assert dist.recv_object_list(objects, src=1, group=group) == 1
        assert objects == ["one", {"two": 2}]
    group = dist.new_group([0, 1, 3])
    for _ in range(3):
        _ring(dist.group.WORLD)
        if me != 2:
            _ring(group)
            total = torch.ones(1)
            dist.all_reduce(total, group=group)  # between messages
            assert total.item() == 3


def _ring(group):
    """Every member hands its tensor on; all at once, as pipelines do."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent, received = torch.full((50_000,), float(rank)), torch.empty(50_000)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % size),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    assert_equal(received, torch.full((50_000,), float((rank - 1) % size)))


@in_group(2)
def test_strided_tensors_and_wrong_use():
    me, other = dist.get_rank(), 1 - dist.get_rank()
    whole = torch.arange(12.0).reshape(3, 4)
    if me == 0:
        dist.send(whole.T, 1)
        dist.send(torch.complex(whole, -whole).T, 1)
    else:
        received = torch.zeros(3, 4)
        dist.recv(received.T, 0)
        assert_equal(received, whole)
        received = torch.zeros(8, 3, dtype=torch.complex64)
        dist.recv(received[::2], 0)
        assert_equal(received[::2], torch.complex(whole, -whole).T)
        assert_equal(received[1::2], torch.zeros(4, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"Invalid (destination|source) rank|same as"):
        dist.send(torch.ones(1), me)
    with pytest.raises(ValueError, match=r"rank 5|expected 0\.\.1|not part"):
        dist.send(torch.ones(1), 5)
    with pytest.raises(ValueError, match="send"):
        dist.send(torch.ones(3).to_sparse(), other)
    for count in (3, 200_000):
        text = f"of ranks 0, 1, tag 0': rank 0 sends {4 * count} bytes, rank 1 receives 8 .expected"
        work = dist.isend(torch.ones(count), 1) if me == 0 else dist.irecv(torch.ones(2), 0)
        with pytest.raises(aiacc.MismatchError, match=text):
            work.wait()
    if me == 0:  # the job goes on
        dist.send(torch.ones(2), 1)
    else:
        _received(torch.ones(2), 0)


@in_group(2, missing=[1])
def test_a_lost_sender_is_an_error():
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(3)
    for source in (1, None):
        with pytest.raises(aiacc.PeerLostError, match="rank 1"):
            dist.recv(torch.ones(1), source)
    with pytest.raises(aiacc.PeerLostError, match="rank 1"):
        dist.send(torch.ones(1), 1)
