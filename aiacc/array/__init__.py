"""Collectives on NumPy arrays: ``import aiacc.array as hvd``.

Names, argument order and defaults are those of ``aiacc.torch`` where both have a function.
"""

from __future__ import annotations

from aiacc.array.exchange_ops import alltoall, alltoall_async, reducescatter, reducescatter_async
from aiacc.array.grouped_ops import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from aiacc.array.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from aiacc.collectives import names
from aiacc.collectives.barrier_join import barrier, join
from aiacc.collectives.handles import poll, synchronize
from aiacc.collectives.names import *  # noqa: F403
from aiacc.collectives.objects import allgather_object, broadcast_object
from aiacc.exceptions import CollectiveError

__all__ = [
    "CollectiveError",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
__all__ += names.__all__
