"""What hooks note of steps, for a profile or a plan."""

from __future__ import annotations

import itertools
import time
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aiacc.torch.recorder import StepRecorder, _between_times
from tests.parallel.planning.test_profile import _net, _step
from tests.support.ranks import run_ranks


class _OnGpu(nn.Parameter):
    """Passes for a parameter on a GPU."""

    gpu = 0
    is_cuda = True

    @property
    def device(self):
        return torch.device("cuda", self.gpu)


@pytest.mark.parametrize("gpus", [1, 2])
def test_moments_on_several_gpus_are_the_hosts(monkeypatch, gpus):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    parameters = [_OnGpu(torch.ones(2)) for _ in range(2)]
    parameters[1].gpu = gpus - 1
    recorder = StepRecorder([(str(n), p) for n, p in enumerate(parameters)])
    devices = [torch.device("cuda", gpu) for gpu in range(gpus)]
    assert (recorder._now is time.perf_counter) == (gpus == 2)
    recorder._now, recorder._between = time.perf_counter, _between_times
    for _ in range(2):
        sum(parameter.sum() for parameter in parameters).backward()
        recorder.step_done()
        assert sorted(waits, key=str) == (devices if gpus == 2 else [])  # else events tell
        waits.clear()
    recorder.detach()
    assert len(recorder.traces("net")) == 1
    assert sorted(waits, key=str) == devices


def test_data_and_earlier_passes_come_before_a_step():
    model = _net()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    recorder = StepRecorder(list(model.named_parameters()))
    now = 0.0
    recorder._now = lambda: now
    for number in range(3):
        now += 5.0  # for data
        _step(model, sgd)
        now += 2.0
        _step(model, sgd)  # before the recorder is told: one more pass of the same step
        now += 1.0
        recorder.step_done()
        assert recorder.leads() == [7.0] * number
    recorder.detach()


class _Checkpointed(nn.Sequential):
    def loss(self, batch, reentrant=False):
        """A step begins with the first block."""
        for block in self:
            batch = checkpoint(block, batch, use_reentrant=reentrant)
        return batch.sum()

    def forward(self, batch):
        """A step begins here; the first pass through the blocks is without gradients."""
        return self.loss(batch, reentrant=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_begins_no_step(reentrant):
    model = _Checkpointed(*_net())
    recorder = StepRecorder(list(model.named_parameters()))
    clock = itertools.count()
    recorder._now = lambda: float(next(clock))
    for _ in range(2):
        batch = torch.ones(1, 3, requires_grad=True)
        (model(batch) if reentrant else model.loss(batch)).backward()
        recorder.step_done()
    recorder.detach()
    step = recorder._steps[-1]
    assert sorted(step.ready) == list(range(6))
    assert step.start <= step.forward_end < min(step.ready.values())
    assert all(mark < step.forward_end for mark in step.needed.values())
    assert len(step.needed) == (0 if reentrant else 6)


def test_what_is_frozen_or_unused_leaves_last():
    model = _net()
    model[0].bias.requires_grad_(False)
    unused = nn.Parameter(torch.zeros(7))
    named = [*model.named_parameters(), ("unused", unused)]
    sgd = torch.optim.SGD([p for _, p in named], 0.1)
    recorder = StepRecorder(named)
    _step(model, sgd)
    recorder.step_done()
    recorder.detach()
    (trace,) = recorder.traces("net")
    assert "0.bias" not in {tensor.name for tensor in trace.tensors}
    (last,) = [tensor for tensor in trace.tensors if tensor.name == "unused"]
    assert last.ready_s == max(tensor.ready_s for tensor in trace.tensors)
    assert last.need_s == 0


def _records_compiled():
    model = _net()
    model[1] = torch.compile(model[1], backend="aot_eager", fullgraph=True)
    recorder = StepRecorder(list(model.named_parameters()))
    whole = _net()
    of_whole = StepRecorder(list(whole.named_parameters()))
    compiled = torch.compile(whole, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of all global hooks, whatever they do
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            recorder.step_done()
            compiled(torch.ones(1, 3)).sum().backward()
            of_whole.step_done()
    recorder.detach()
    of_whole.detach()
    need = {tensor.name[0]: tensor.need_s for tensor in recorder.traces("net")[-1].tensors}
    assert need["0"] < need["1"] < need["2"]
    assert len(of_whole.traces("net")) == 2  # the first one too: it began with the forward pass


def test_compiled_modules_are_recorded_and_their_graphs_stay_whole():
    run_ranks(1, _records_compiled)
