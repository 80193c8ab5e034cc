"""For ranks of `run_ranks` that use `torch.distributed`."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import aiacc.torch
from tests.support.jobs import on_ranks
from tests.support.ranks import free_port, run_ranks


def join(port: int, backend: str = "aiacc", **options: Any) -> None:
    """Join the default group as under torchrun: everything is in the environment."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=os.environ["AIACC_RANK"],
        WORLD_SIZE=os.environ["AIACC_SIZE"],
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    dist.init_process_group(backend, **options)


def join_gloo(port: int) -> None:
    """Join a default group of gloo's, as a rank of the job that there is."""
    method = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", method, rank=aiacc.torch.rank(), world_size=aiacc.torch.size())


def _run_in_group(size: int, body: Any, arguments: Mapping[str, Any], **options: Any) -> None:
    run_ranks(size, _in_group, free_port(), body, arguments, **options)


#: `on_ranks`; its body is what ranks do between joining and leaving the default group.
in_group = functools.partial(on_ranks, run=_run_in_group, starts=False)


def _in_group(port: int, body: Any, arguments: Mapping[str, Any]) -> None:
    join(port)
    body.run(arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


def lose(victim: int) -> None:
    """End the process of a rank when the others are past a barrier, which they would lose else."""
    me, size = dist.get_rank(), dist.get_world_size()
    ports = [free_port() if me == victim else 0]
    dist.broadcast_object_list(ports, victim)
    store = dist.TCPStore(
        "127.0.0.1", ports[0], size, is_master=me == victim, wait_for_workers=False
    )
    dist.barrier()
    if me == victim:
        store.wait([str(rank) for rank in range(size) if rank != victim])
        os._exit(3)
    store.set(str(me), "is past the barrier")


def leave() -> None:
    """Leave the default group. No `DistributedDataParallel` may be in use any more.

    One that is freed later frees gloo's group while it holds the GIL: where that waits for a
    thread which frees what it has reduced, and needs the GIL for it, both wait for ever.
    """
    gc.collect()
    dist.destroy_process_group()


def assert_equal(actual: object, expected: object) -> None:
    """Compare tensors, bit for bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
