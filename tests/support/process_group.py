"""For ranks of `run_ranks` that use `torch.distributed`."""

from __future__ import annotations

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


def assert_equal(actual: object, expected: object) -> None:
    """Compare tensors, bit for bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
