"""Several ranks on one GPU, each way that there is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from aiacc import _core
from bench.gpu import SOCKETS
from tests.support import ranks

#: NCCL refuses a GPU that two ranks of one host have. With a host of its own for each rank it takes
#: sockets between them, which also shows how many flows it opens.
HOSTS = "a host for each rank"
#: NCCL 2.30 and later.
SHARED = "ranks may share a GPU"
STAGED = "staged"
WAYS = (HOSTS, SHARED, STAGED)


def environment(way: str) -> dict[str, str]:
    """Variables of every rank. Skips the test if NCCL does not know the way."""
    if way == STAGED:
        return {"AIACC_GPU_ENGINE": "staged"}
    if way == SHARED and (version := nccl_version()) < (2, 30):
        pytest.skip(f"NCCL_MULTI_RANK_GPU_ENABLE needs NCCL 2.30, this is {version}")
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}
    return {"AIACC_GPU_ENGINE": "nccl", **(shared if way == SHARED else SOCKETS)}


def lanes(number: int) -> dict[str, str]:
    """Variables for so many lanes, of the engine for the GPU and of that for host memory."""
    return {"AIACC_LANES": str(number), "AIACC_GPU_LANES": str(number)}


def run_ranks(
    way: str,
    size: int,
    function: Callable[..., Any],
    *args: Any,
    env: dict[str, str] | None = None,
    **rest: Any,
) -> list[Any]:
    """`ranks.run_ranks` with all ranks on GPU 0."""
    changes = {**environment(way), **(env or {})}
    return ranks.run_ranks(size, with_a_host_of_its_own, way, function, *args, env=changes, **rest)


def with_a_host_of_its_own(way: str, function: Callable[..., Any], *args: Any) -> Any:
    """In a rank, before NCCL starts: run ``function(*args)``."""
    if way == HOSTS:
        os.environ["NCCL_HOSTID"] = f"host{os.environ['AIACC_RANK']}"
    return function(*args)


def nccl_version() -> tuple[int, ...]:
    """Version of the NCCL that aiacc would load here; skips the test if that cannot run."""
    for name, viable, detail in _core.engines():
        if name == "nccl":
            found = re.search(r"NCCL (\d+)\.(\d+)", detail)
            if viable and found is not None:
                return tuple(map(int, found.groups()))
            pytest.skip(f"nccl cannot run: {detail}")
    raise AssertionError("this build has no engine nccl")
