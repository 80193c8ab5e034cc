"""For ranks of `run_ranks` that use `torch.distributed`."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist

import aiacc.torch  # noqa: F401 - registers the backend


def join(port: int, backend: str = "aiacc") -> None:
    """Join the default group as under torchrun: everything is in the environment."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=os.environ["AIACC_RANK"],
        WORLD_SIZE=os.environ["AIACC_SIZE"],
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    dist.init_process_group(backend)


def lose(victim: int, port: int) -> None:
    """End the process of a rank when the others are past a barrier, which they would lose else."""
    me, size = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore("127.0.0.1", port, size, is_master=me == victim, wait_for_workers=False)
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
