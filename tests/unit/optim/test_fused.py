"""What the core takes of steps of optimizers; tests/gpu has those on a GPU."""

import pytest
import torch

import aiacc
from aiacc import _core
from aiacc.optim import LAMB, LARS

#: No machine has so many GPUs.
NO_GPU = 1000


def test_the_core_wants_a_number_as_rate_of_tensors_on_the_cpu():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match="fused=True with a tensor on cpu as lr and parameters on"):
        LARS([weight], lr=torch.tensor(0.1), fused=True).step()


def test_lamb_has_no_step_in_host_memory():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    optimizer = LAMB([weight], fused=True)
    with pytest.raises(
        ValueError, match=r"fused=True with torch\.float32 on cpu .expected .* cuda"
    ):
        optimizer.step()
    assert not optimizer.state[weight]  # as if nobody had called it
    LAMB([weight]).step()


def test_a_gpu_that_is_not_there_has_no_kernels():
    assert _core.optim_problem(NO_GPU).startswith("[")
    options = _core.LarsOptions(
        lr=0.1,
        momentum=0.9,
        dampening=0.0,
        weight_decay=0.0,
        trust_coefficient=0.001,
        eps=0.0,
        least_ratio=0.0,
        largest_ratio=1.0,
        nesterov=False,
        larc=False,
        adapt=True,
        first=True,
    )
    with pytest.raises((ValueError, aiacc.EngineError)):
        _core.lars_step_on_gpu([], options, device=NO_GPU, stream=0, lr=0, workspace=0)


def test_memory_for_sums_grows_by_16_bytes_a_tensor():
    assert _core.optim_workspace_bytes(7) - _core.optim_workspace_bytes(0) == 7 * 16
