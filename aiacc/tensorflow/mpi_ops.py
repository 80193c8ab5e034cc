"""Every operation on tensors under the name of Horovod's module; no MPI is involved."""

from __future__ import annotations

from aiacc.capabilities import num_rank_is_power_2 as check_num_rank_power_of_2
from aiacc.collectives import names
from aiacc.collectives.names import *  # noqa: F403
from aiacc.tensorflow.ops.allgather import allgather, grouped_allgather
from aiacc.tensorflow.ops.allreduce import allreduce, grouped_allreduce
from aiacc.tensorflow.ops.alltoall import alltoall
from aiacc.tensorflow.ops.barrier_join import barrier, join
from aiacc.tensorflow.ops.broadcast import broadcast, broadcast_
from aiacc.tensorflow.ops.reducescatter import grouped_reducescatter, reducescatter
from aiacc.tensorflow.ops.topology import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += names.__all__
