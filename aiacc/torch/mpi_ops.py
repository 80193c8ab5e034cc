"""Every operation on tensors under the name of Horovod's module; no MPI is involved.

Every collective has to be called by all ranks with equal names, shapes (except the first dimension
of an all-gather or all-to-all), dtypes and parameters, in any order. Calls without a name are
paired by counting them, so those need the same order everywhere.
"""

from __future__ import annotations

from aiacc.collectives import names
from aiacc.collectives.barrier_join import barrier, join
from aiacc.collectives.handles import poll, synchronize
from aiacc.collectives.names import *  # noqa: F403
from aiacc.torch.compression.compressors import Compression
from aiacc.torch.ops.allgather import allgather, allgather_async
from aiacc.torch.ops.allreduce import allreduce, allreduce_, allreduce_async, allreduce_async_
from aiacc.torch.ops.alltoall import alltoall, alltoall_async
from aiacc.torch.ops.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from aiacc.torch.ops.grouped_allgather import grouped_allgather, grouped_allgather_async
from aiacc.torch.ops.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from aiacc.torch.ops.grouped_reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from aiacc.torch.ops.reducescatter import reducescatter, reducescatter_async
from aiacc.torch.ops.sparse import sparse_allreduce_async

__all__ = [
    "Compression",
    "allgather",
    "allgather_async",
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
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += names.__all__
