"""How gradients are reduced."""

from __future__ import annotations

from typing import NamedTuple

from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.compression.compressors import Compression, Compressor
from aiacc.torch.reducer.plan import Planner, singly
from aiacc.torch.reducer.storage import Storage, own_memory


class ReductionOptions(NamedTuple):
    """How gradients are reduced; equal on all ranks."""

    op: int = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    planner: Planner = singly()
    storage: Storage = own_memory
