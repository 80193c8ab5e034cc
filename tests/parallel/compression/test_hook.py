"""What a hook that compresses holds: memory while it is written to, and parameters it watches."""

from __future__ import annotations

import copy
import gc
import os
import weakref

import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.learning.coded import Job, on_ranks_over_tcp, run_in_ddp, values_of

_SIDE = 160


class _Bucket:
    """As DistributedDataParallel gives it."""

    def __init__(self):
        self.memory = torch.randn(_SIDE * _SIDE)
        self.parameter = nn.Parameter(torch.zeros(_SIDE, _SIDE))

    def buffer(self):
        return self.memory

    def gradients(self):
        return [self.memory.view(_SIDE, _SIDE)]

    def parameters(self):
        return [self.parameter]

    def index(self):
        return 0

    def is_last(self):
        return True


@on_ranks_over_tcp(2)
def test_residuals_of_an_operation_under_way_outlive_the_state_of_the_hook(tmp_path):
    path = tmp_path / "fifo"
    if hvd.rank() == 0:
        os.mkfifo(path)
    state = hvd.HookState(compression="mstopk:density=0.1")
    bucket = _Bucket()
    for _ in range(2):
        hvd.allreduce_hook(state, bucket).wait()
    if hvd.rank() == 1:
        path.read_text()  # until rank 0 has dropped its state
    bucket.parameter.sum().backward()
    future = hvd.allreduce_hook(state, bucket)
    (residual,) = state.feedback.residuals.values()
    memory = weakref.ref(residual._base)
    del residual, state
    gc.collect()
    if hvd.rank() == 0:
        assert memory() is not None, "the core writes to it"
        path.write_text("dropped")
    future.wait()


def thawed():
    """A parameter that is trained later than DDP was made has its residuals sent, too."""
    job = Job(
        "topk:density=0.05",
        {"first": (40, 40), "second": (40, 40)},
        "hook",
        find_unused_parameters=True,
    )
    weight = job.model.first
    weight.requires_grad_(False)
    gradient = values_of(1, 40, 40)
    for number in range(40):
        results = job.step({"first": gradient, "second": gradient})
        if number == 0:
            weight.requires_grad_(True)
    assert (weight != 0).float().mean() > 0.6
    assert results["first"].any()
    watches = len(weight._post_accumulate_grad_hooks)
    copied = copy.deepcopy(job.state)
    del copied
    gc.collect()
    assert len(weight._post_accumulate_grad_hooks) == watches, "a copy has hooks of its own"
    del job
    gc.collect()
    assert not weight._post_accumulate_grad_hooks


def test_a_parameter_that_is_trained_later_is_watched_as_long_as_there_is_a_hook(tmp_path):
    run_in_ddp(2, tmp_path, thawed)
