"""What an optimizer of the decoupled schedule is made with."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from aiacc.torch.reducer.gradients import NamedParameters
from aiacc.torch.reducer.options import ReductionOptions


class Setup(NamedTuple):
    """What `distribute_decoupled` was given; equal on all ranks."""

    model: nn.Module
    named: NamedParameters
    #: Their storage and their codec do not count: parameters and gradients are in flat memory.
    options: ReductionOptions
