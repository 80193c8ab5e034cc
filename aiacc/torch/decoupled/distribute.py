"""Makes an optimizer of the decoupled schedule of one of torch's."""

from __future__ import annotations

import torch

from aiacc import basics
from aiacc.torch.decoupled.optimizer import DecoupledDistributed
from aiacc.torch.decoupled.setup import Setup
from aiacc.torch.decoupled.shards import Shards, all_parameters
from aiacc.torch.recorder import tell_of_no_profile
from aiacc.torch.wrapped_optimizer import instance_of, take_over


def distribute_decoupled(
    optimizer: torch.optim.Optimizer, setup: Setup, passes: int
) -> DecoupledDistributed:
    """Make one that has the state, the parameter groups and the hooks of ``optimizer``."""
    tell_of_no_profile("schedule='decoupled'", setup.options.process_set)
    distributed = instance_of(DecoupledDistributed, type(optimizer))
    take_over(distributed, optimizer)
    distributed._aiacc_names = {parameter: name for name, parameter in setup.named}
    distributed._aiacc_setup, distributed._aiacc_passes = setup, passes
    parameters = all_parameters(optimizer.param_groups)
    distributed._aiacc_exchange = None
    distributed._aiacc_shards = Shards(parameters, setup.options.process_set)
    distributed._aiacc_form()
    basics.at_init(distributed._aiacc_renew)
    return distributed
