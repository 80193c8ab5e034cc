"""Groups of some ranks on the backend "aiacc": every operation in them, `send` and `recv`."""

import inspect
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed._tensor import Replicate, Shard, distribute_tensor  # torch 2.4's name
from torch.distributed.device_mesh import init_device_mesh

import aiacc
import aiacc.torch as hvd
from aiacc.torch.distributed.groups import series_of
from tests.parallel.torch.test_process_group import check_every_operation
from tests.support.jobs import on_ranks
from tests.support.process_group import assert_equal, in_group, join, lose


def _sum(value, group=None):
    """What the members give, added up."""
    total = torch.tensor([float(value)])
    dist.all_reduce(total, group=group)
    return total.item()


#: Overlapping, disjoint, of one rank, nested, of all ranks, the same ranks twice.
RANKS = [[0, 1, 2], [1, 2, 3], [0, 1], [2, 3], [3], [1, 2], [0, 1, 2, 3], [0, 1]]


def test_errors_call_a_group_by_its_ranks():
    found = [series_of("a.3", ranks) for ranks in ((3,), (1, 2), (1, 2, 3), (0, 2, 4, 6, 9))]
    members = ["rank 3", "ranks 1, 2", "ranks 1 to 3", "ranks 0, 2, 4, 6 and others"]
    assert found == [f"group a_3 of {some}" for some in members]


@in_group(4)
def test_every_operation_in_groups_of_all_kinds():
    me = dist.get_rank()
    groups = [(dist.new_group(members), members) for members in RANKS]
    mine = [(group, members) for group, members in groups if me in members]
    # Members of overlapping groups take them in the same order; in both directions.
    for group, members in [*mine, *reversed(mine)]:
        assert members[dist.get_rank(group)] == me
        assert dist.get_world_size(group) == len(members)
        assert dist.get_backend(group) == "aiacc"
        assert dist.get_process_group_ranks(group) == members
        check_every_operation(group)
    works = [
        (dist.all_reduce(total, group=group, async_op=True), total, len(members))
        for group, members in mine
        for total in [torch.ones(70_000)]
    ]
    for work, total, size in reversed(works):
        work.wait()
        assert_equal(total, torch.full((70_000,), float(size)))


@in_group(4)
def test_members_alone_form_a_group():
    """Ranks outside neither call nor wait; groups of other ranks, or of groups, meet nowhere."""
    me = dist.get_rank()
    for _ in range(3):
        pair = [0, 1] if me < 2 else [2, 3]
        group = dist.new_group(pair, use_local_synchronization=True)
        for _ in range(me // 2 + 1):  # the pairs do different numbers of operations
            assert _sum(me, group) == sum(pair)
        dist.destroy_process_group(group)
    # torch gives groups of disjoint groups the same names.
    half, halves = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    own, owns = dist.new_subgroups(group_size=1, group=half)
    assert (len(halves), len(owns)) in ((2, 2), (2, 4))  # torch 2.4 ignores `group`
    assert dist.get_process_group_ranks(own) == [me]
    assert (_sum(me, own), _sum(me, half)) == (me, 2 * (me % 2) + 2)


@on_ranks(3, starts=False)
def test_a_group_is_destroyed_and_others_stay(port, other_port):
    join(port)
    me = dist.get_rank()
    for number in range(4):
        group = dist.new_group([1, 2])
        if me > 0:
            total = torch.full((number + 1,), 1.0)
            dist.all_reduce(total, group=group)
            assert_equal(total, torch.full((number + 1,), 2.0))
            dist.destroy_process_group(group)
            with pytest.raises(ValueError, match=r"not initialized in the world group|not regist"):
                inspect.unwrap(dist.all_reduce)(total, group=group)  # torch 2.4 logs by a TypeError
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.destroy_process_group(group)
    assert _sum(1) == 3  # the job goes on
    left = dist.new_group([0, 2])
    if me == 0:
        dist.destroy_process_group(left)  # alone
    dist.destroy_process_group()
    join(other_port)
    group = dist.new_group([0, 1])  # by the name of an earlier one
    assert me == 2 or _sum(3, group) == 6
    dist.destroy_process_group()


@in_group(3)
def test_a_rank_that_is_done_waits_for_groups_of_others():
    """Rank 0 is done long before the others are, with a group in which it is not."""
    group = dist.new_group([1, 2])
    for number in range(200 if dist.get_rank() > 0 else 0):
        total = torch.full((100,), float(number))
        dist.all_reduce(total, group=group)
        assert_equal(total, torch.full((100,), 2.0 * number))
        if dist.get_rank() == 1:
            dist.send(total, 2, group=group)
        else:
            dist.recv(total, 1, group=group)
    dist.destroy_process_group()
    assert not aiacc.is_initialized()


@in_group(3, env={"AIACC_PEER_TIMEOUT_S": "0.5"})
def test_a_rank_that_leaves_does_not_wait_for_ever():
    dist.barrier()
    if dist.get_rank() > 0:
        with pytest.raises(aiacc.ShutdownError, match="rank 0 has shut down"):
            dist.all_reduce(torch.ones(1)) if dist.get_rank() == 1 else dist.recv(torch.ones(1), 0)


@in_group(3)
def test_wrong_use_is_an_error_on_every_rank():
    me = dist.get_rank()
    assert dist.get_process_group_ranks(dist.new_group([2, 0, 1])) == [0, 1, 2]
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        with pytest.raises(ValueError, match=r"ranks \[2, 0, 1\] \(expected them to ascend\)"):
            dist.new_group([2, 0, 1], sort_ranks=False)
    with pytest.raises((ValueError, RuntimeError), match="rank"):
        dist.new_group([0, 7])
    group = dist.new_group([0, 1])
    if me == 2:
        with pytest.warns(UserWarning, match="does not belong to the given group"):
            assert dist.all_reduce(torch.ones(1), group=group) is None
        assert dist.get_rank(group) == -1
    else:
        with pytest.raises(aiacc.MismatchError, match="shape"):
            dist.all_reduce(torch.ones(2 + me), group=group)
        dtype = torch.float32 if me == 0 else torch.int64
        with pytest.raises(aiacc.MismatchError, match=r"float32.*int64|int64.*float32"):
            dist.all_reduce(torch.ones(2, dtype=dtype), group=group)
        with pytest.raises(aiacc.MismatchError, match="root"):
            dist.broadcast(torch.ones(2), me, group=group)
        with pytest.raises(ValueError, match="not part of"):
            dist.broadcast(torch.ones(2), 2, group=group)
        assert _sum(1, group) == 2  # the group goes on
    with pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()
    if hasattr(dist, "split_group"):
        with pytest.raises(RuntimeError, match="not safe to split"):
            dist.split_group(split_ranks=[[0, 1, 2]])
    dist.barrier()


@in_group(3, missing=[1])
def test_a_lost_member_is_an_error():
    group = dist.new_group([0, 1])
    other = dist.new_group([0, 2])
    lose(1)
    with pytest.raises(RuntimeError, match="rank 1"):  # in the call, if it is known by then
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    if dist.get_rank() == 0:
        with pytest.raises(aiacc.PeerLostError, match="rank 1"):
            dist.all_reduce(torch.ones(1), group=group)
    with pytest.raises(aiacc.PeerLostError, match="rank 1"):
        dist.all_reduce(torch.ones(1), group=other)
    dist.destroy_process_group(other)


@in_group(3)
def test_sparse_tensors_of_different_numbers_of_elements():
    me = dist.get_rank()
    group = dist.new_group([1, 2])
    for shape, sparse_dim in (((5,), 1), ((4, 3), 2), ((4, 3), 1), ((2, 3, 2), 2)):
        dense = [torch.zeros(shape) for _ in range(3)]
        for rank, tensor in enumerate(dense):
            tensor[: rank + 1] = rank + 1.0
        dense[0].zero_()  # no elements at all
        for of, members in ((None, [0, 1, 2]), (group, [1, 2])):
            if me not in members:
                continue
            total = dense[me].to_sparse(sparse_dim)
            dist.all_reduce(total, group=of)
            assert total.is_sparse
            assert_equal(total.to_dense(), sum(dense[member] for member in members))
            dist.all_reduce(total, dist.ReduceOp.AVG, group=of)  # of equal ones
            assert_equal(total.to_dense(), sum(dense[member] for member in members))
    with pytest.raises(ValueError, match=r"sparse tensor \(expected SUM or AVG\)"):
        dist.all_reduce(torch.ones(3).to_sparse(), dist.ReduceOp.MAX)
    ones = torch.ones(4, 2, dtype=torch.float64)
    for odd, *op, text in (
        (ones[:3].to_sparse(), r"\[0, 4\], rank 2 .*\[0, 3\]"),
        (ones.to_sparse(), dist.ReduceOp.AVG, "op Sum, rank 2 .*op Average"),
        (ones.clone(), "operation allgather, rank 2 .*operation allreduce"),
    ):
        with pytest.raises(aiacc.MismatchError, match=f"rank 0 .*{text}"):
            dist.all_reduce(*([odd, *op] if me == 2 else [ones.to_sparse()]))
    dist.barrier()


@in_group(4)
def test_rows_and_columns_of_a_mesh():
    me = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name, members in (
        ("replicate", [me % 2, me % 2 + 2]),
        ("shard", [me - me % 2, me - me % 2 + 1]),
    ):
        group = mesh.get_group(name)
        assert dist.get_backend(group) == "aiacc"
        assert dist.get_process_group_ranks(group) == members
        assert _sum(me, group) == sum(members)
    flat = mesh._flatten("all").get_group() if hasattr(mesh, "_flatten") else None
    total = torch.ones(3)
    dist.all_reduce(total, group=flat)
    assert_equal(total, torch.full((3,), 4.0))

    whole = torch.arange(24.0).reshape(4, 6)
    spread = distribute_tensor(whole, mesh, [Replicate(), Shard(1)])
    assert spread.to_local().shape == (4, 3)
    assert_equal(spread.full_tensor(), whole)
    rows = spread.redistribute(mesh, [Shard(0), Shard(0)])
    assert_equal(rows.to_local(), whole[me : me + 1])
    product = rows @ spread.T.redistribute(mesh, [Replicate(), Replicate()])
    assert_equal(product.full_tensor(), whole @ whole.T)


@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="torch has no FSDP2 but on GPUs")
@in_group(2)
def test_dtensors_are_not_for_hvd_nor_for_operations_on_one_tensor():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
    fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(8, 6)).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    for call in (
        lambda: hvd.allreduce(norm),
        lambda: hvd.broadcast_optimizer_state(adam, 1),
        lambda: hvd.broadcast_parameters(model.state_dict(), 0),
        lambda: dist.all_reduce(norm),
        lambda: dist.broadcast(norm, 0),
        lambda: dist.all_gather([torch.empty(()) for _ in range(2)], norm),
        lambda: dist.reduce_scatter_tensor(torch.empty(1), next(model.parameters())[:2, 0]),
        lambda: dist.send(norm, 1 - dist.get_rank()),
        lambda: dist.recv(norm, 1 - dist.get_rank()),
    ):
        with pytest.raises(ValueError, match=r"DTensor.*to_local\(\).*full_tensor\(\)"):
            call()
    with pytest.raises(ValueError, match=r"'0\.weight' is a DTensor.*use the optimizer as it is"):
        hvd.DistributedOptimizer(adam, model.named_parameters())
    assert_equal(hvd.allreduce(norm.full_tensor()), norm.full_tensor())


# --- messages

MESSAGE_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
#: Numbers of elements: none, few, and more than one write takes.
MESSAGE_SIZES = (0, 1, 1000, 3_000_000)


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
def test_messages_of_every_pair():
    me, size = dist.get_rank(), dist.get_world_size()
    for count in MESSAGE_SIZES:
        for dtype in MESSAGE_DTYPES if count < 10_000 else MESSAGE_DTYPES[:1]:
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
def test_messages_of_any_source():
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
    group, by_group = dist.new_group([1, 3]), "group_dst" in inspect.signature(dist.send).parameters
    if me == 1:
        dist.send(torch.ones(2), group=group, **({"group_dst": 1} if by_group else {"dst": 3}))
        dist.send_object_list(["one", {"two": 2}], dst=3, group=group)
    if me == 3:
        _received(torch.ones(2), group=group, **({"group_src": 0} if by_group else {"src": 1}))
        objects = [None, None]
        assert dist.recv_object_list(objects, src=1, group=group) == 1
        assert objects == ["one", {"two": 2}]
    group = dist.new_group([0, 1, 3])
    for _ in range(3):
        _ring(dist.group.WORLD)
        if me != 2:
            _ring(group)
            assert _sum(1, group) == 3  # between messages


def _ring(group):
    """Every member hands its tensor on; all at once, as pipelines do."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent, received = torch.full((50_000,), float(rank)), torch.empty(50_000)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, dist.get_global_rank(group, (rank + 1) % size), group),
            dist.P2POp(dist.irecv, received, dist.get_global_rank(group, (rank - 1) % size), group),
        ]
    )
    for work in works:
        work.wait()
    assert_equal(received, torch.full((50_000,), float((rank - 1) % size)))


@in_group(2)
def test_strided_messages_and_wrong_use():
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
