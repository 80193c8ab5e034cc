"""The store of torch in which ranks of torchrun meet, and groups of torch in children of ranks."""

import multiprocessing
import os
import socket

import pytest
import torch.distributed as dist

import aiacc.torch as hvd
from aiacc.bootstrap.records import Record
from aiacc.exceptions import BootstrapError
from tests.parallel.launch.helpers import exchange
from tests.support.jobs import on_ranks
from tests.support.ranks import free_port, run_ranks


def be_told(port, agent):
    """What torchrun tells this rank, or without an agent a user by hand; its number."""
    for ours, theirs in (("AIACC_RANK", "RANK"), ("AIACC_SIZE", "WORLD_SIZE")):
        os.environ[theirs] = os.environ.pop(ours, os.environ.get(theirs))
    os.environ.pop("AIACC_ADDR", None)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(agent)
    return int(os.environ["RANK"])


def meet_and_be_refused(ports, taken):
    """What is said of a port that somebody else has, after meetings at free ones."""
    orders = ("exchange", "torch exchange torch", "exchange torch exchange")
    for order, port in zip(orders, ports, strict=True):
        rank = be_told(port, agent=False)
        for step in order.split():
            if step == "exchange":
                assert exchange(3, 2) == "torchrun", order
            else:
                dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
                dist.barrier()
                dist.destroy_process_group()
    be_told(taken, agent=False)
    with pytest.raises(BootstrapError) as raised:
        exchange(1, 1, timeout_s=2.0)
    return str(raised.value)


def test_rank_0_hosts_the_store_and_shares_it_with_torch_unless_its_port_is_taken():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        texts = run_ranks(2, meet_and_be_refused, [free_port() for _ in range(3)], port)
    assert f"the port is taken by process {os.getpid()}" in texts[0]
    assert f"what listens at 127.0.0.1:{port} did not answer rank 1" in texts[1]


@on_ranks(2, starts=False)
def test_a_store_with_entries_of_an_earlier_life(port):
    rank = be_told(port, agent=True)
    # Rank 0 plays the agent, whose store has seen an earlier life of the job.
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        for stale in range(2):
            entry = Record(stale, 2, 0, nonce=f"old{stale}").encode(b"stale")
            seen = f'{{"nonce": "old{stale}", "seen": ["old0", "old1"]}}'
            for n in range(2):
                store.set(f"aiacc/0/0/{n}/entry/{stale}", entry)
                store.set(f"aiacc/0/0/{n}/seen/{stale}", seen)
        store.set("earlier life", "over")
    store.wait(["earlier life"])
    exchange(2, 2)
    if rank == 0:  # with it ends the store
        store.wait(["finished"])
    else:
        store.set("finished", "")


def be_a_group(told):
    """A child of a rank: it learns that it is not that rank, and may be a group alone."""
    hvd.shutdown()  # of what a fork has inherited
    with pytest.raises(BootstrapError) as raised:
        dist.init_process_group("aiacc")
    dist.init_process_group("aiacc", store=dist.HashStore(), rank=0, world_size=1)
    told.put((str(raised.value), hvd.rank(), hvd.size()))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("launched", "text"),
    [
        (False, "set AIACC_RANK=0 and AIACC_SIZE=1"),
        (True, "store=torch.distributed.HashStore(), rank=0 and world_size=1"),
    ],
    ids=["explicit", "torchrun"],
)
@on_ranks(2, starts=False)
def test_a_child_of_a_rank_is_not_that_rank_in_a_group_of_torch(port, launched, text):
    rank = int(os.environ["AIACC_RANK"])
    if launched:  # with rank 0 as the agent
        agent = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
        be_told(port, agent=True)
    hvd.init()
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    child = context.Process(target=be_a_group, args=(told,))
    child.start()
    child.join()
    assert child.exitcode == 0
    said, *place = told.get()
    assert place == [0, 1]
    assert said.count(f"rank {rank} of 2 is process {os.getpid()}, which has started") == 1
    assert text in said
    hvd.barrier()
    if launched and rank == 0:  # with it ends the store
        agent.wait(["finished"])
    elif launched:
        agent.set("finished", "")
