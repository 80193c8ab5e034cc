"""Data-parallel training with torch: ``import aiacc.torch as hvd``.

Names, argument order and defaults are those of ``horovod.torch``.
"""

from __future__ import annotations

from aiacc.capabilities import check_extension
from aiacc.exceptions import (
    CollectiveError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    ParallelMapError,
)
from aiacc.torch import elastic, mpi_ops
from aiacc.torch.compile import compile_blocks
from aiacc.torch.compression.topk import topk_threshold
from aiacc.torch.distributed import process_group
from aiacc.torch.distributed.ddp_hook import HookState, allreduce_hook
from aiacc.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from aiacc.torch.kfac.preconditioner import KFAC
from aiacc.torch.mpi_ops import *  # noqa: F403
from aiacc.torch.optimizer import DistributedOptimizer
from aiacc.torch.parallel.mapping import parallel_map
from aiacc.torch.sync_batch_norm import SyncBatchNorm

process_group.register()

__all__ = [
    "KFAC",
    "CollectiveError",
    "DistributedOptimizer",
    "HookState",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "ParallelMapError",
    "SyncBatchNorm",
    "allgather_object",
    "allreduce_hook",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "compile_blocks",
    "elastic",
    "parallel_map",
    "topk_threshold",
]
__all__ += mpi_ops.__all__
