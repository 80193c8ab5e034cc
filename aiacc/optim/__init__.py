"""Optimizers of torch for large batches, and the schedule that goes with them.

They need neither `aiacc.init` nor `DistributedOptimizer`, and work inside it.
"""

from __future__ import annotations

from aiacc.optim.adam_sgd import AdamSGD
from aiacc.optim.lamb import LAMB
from aiacc.optim.lars import LARS
from aiacc.optim.schedules import interpolation, linear_decay
from aiacc.optim.trust import one_dimensional

__all__ = ["LAMB", "LARS", "AdamSGD", "interpolation", "linear_decay", "one_dimensional"]
