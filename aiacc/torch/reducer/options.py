"""How gradients are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.compression.compressors import Compression
from aiacc.torch.reducer.codec import Coding, compressing
from aiacc.torch.reducer.identity import Identity
from aiacc.torch.reducer.plan import Planner, singly
from aiacc.torch.reducer.storage import Storage, own_memory


class Asked(NamedTuple):
    """What a user has asked for, in words, which the ranks compare in their first step."""

    #: What decides on buckets.
    buckets: str = ""
    compression: str = ""
    sparse_as_dense: str = ""


class ReductionOptions(NamedTuple):
    """How gradients are reduced; equal on all ranks, and picklable."""

    op: int = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    sparse_as_dense: bool = False
    #: Which gradients form a bucket.
    planner: Planner = singly()
    #: Where they are.
    storage: Storage = own_memory
    #: Makes what encodes them, for each bucket anew.
    codec: Coding = partial(compressing, Compression.none)
    #: Called when the gradients of a step are all reduced, or have failed, with the sparse ones;
    #: collective. None: nobody cares.
    settle: Callable[[ProcessSet, Sequence[torch.Tensor | None]], None] | None = None
    #: Called when they are dropped instead.
    drop: Callable[[], None] | None = None
    asked: Asked = Asked()
    #: None: of no optimizer.
    identity: Identity | None = None

    def verb(self) -> str:
        """What names of operations on gradients begin with: no name of a user's operation does."""
        if self.identity is None:
            return "gradient"
        return f"optimizer.{self.identity.number(self.process_set)}"
