"""For ranks of `run_ranks` that use `torch.distributed`."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import aiacc.torch  # noqa: F401 - registers the backend
from tests.support.ranks import free_port, run_ranks


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


def in_group(*sizes: Any, **options: Any) -> Callable[[Callable[[], object]], Callable[..., None]]:
    """The body of the test is what ranks do between joining and leaving the default group.

    Args:
        sizes: Numbers of ranks, once for each of which the test runs.
        options: Those of `run_ranks`.
    """

    def decorate(body: Callable[[], object]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(size: int) -> None:
            run_ranks(size, _run, body.__module__, body.__name__, free_port(), **options)

        size = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([size])  # what pytest asks for
        return pytest.mark.parametrize("size", sizes)(test)

    return decorate


def _run(module: str, name: str, port: int) -> None:
    join(port)
    getattr(importlib.import_module(module), name).__wrapped__()
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
