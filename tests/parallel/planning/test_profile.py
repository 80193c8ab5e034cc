"""What AIACC_PROFILE writes, and what hooks note of steps for it and for a plan."""

import contextlib
import functools
import gc
import io
import itertools
import os
import time
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aiacc.torch as hvd
from aiacc.autotune.profile import COUNTED, WARM_UP, slowest_of_all
from aiacc.planning.trace import Trace
from aiacc.torch.recorder import StepRecorder, _between_times
from tests.support.jobs import on_ranks
from tests.support.learning.training import distributed

STEPS = WARM_UP + COUNTED
_in_job = functools.partial(on_ranks, starts=False)


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))


def _step(model, optimizer, passes=1):
    optimizer.zero_grad()
    for _ in range(passes):
        with torch.no_grad():
            model(torch.ones(1, 3))  # evaluation begins no step
        model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def _begin(folder):
    """Join a job that writes into ``folder``; the first file."""
    os.environ["AIACC_PROFILE"] = str(folder / "net.json")
    hvd.init()
    return folder / "net.json"


def _start(model=None, **options):
    """A model and its optimizer."""
    model = model or _net()
    return model, distributed(model, torch.optim.SGD(model.parameters(), 0.1), **options)


def _take(steps, model, optimizer, passes=1):
    for _ in range(steps):
        _step(model, optimizer, passes)


def _trace(path):
    hvd.barrier()
    return Trace.decode(path.read_text())


def _sizes(path):
    """Bytes of the gradients in a profile, by name."""
    return {tensor.name: tensor.bytes for tensor in _trace(path).tensors}


@_in_job(1, 2)
def test_a_job_writes_its_steps(tmp_path):
    path = _begin(tmp_path)
    _take(STEPS, *_start(backward_passes_per_step=2), passes=2)
    trace = _trace(path)
    assert trace.source == "measured"
    assert trace.model == "net"
    assert _sizes(path) == {name: 4 * p.numel() for name, p in _net().named_parameters()}
    order = [tensor.name.split(".")[0] for tensor in trace.tensors]
    assert order == sorted(order, reverse=True)  # the last layer's come first
    need = {tensor.name.split(".")[0]: tensor.need_s for tensor in trace.tensors}
    assert 0 <= need["0"] < need["1"] < need["2"] <= trace.forward_s
    assert trace.tensors[0].ready_s >= trace.forward_s > 0


@_in_job(3)
def test_ranks_outside_a_process_set_have_no_part_in_its_profile(tmp_path):
    path = _begin(tmp_path)
    process_set = hvd.add_process_set([1, 2])
    _take(STEPS if process_set.included() else 3, *_start(process_set=process_set))
    assert len(_sizes(path)) == 6


@pytest.mark.parametrize("steps", [STEPS - 8, STEPS + 3])
@_in_job(2)
def test_a_job_that_starts_anew_writes_its_steps_anew(tmp_path, steps):
    """The second rank is a worker that has come anew, with an optimizer that has done nothing."""
    path = _begin(tmp_path)
    both = _start()
    _take(steps, *both)
    hvd.shutdown()
    path.unlink(missing_ok=True)
    hvd.init()
    _take(STEPS + 3, *(_start() if hvd.rank() == 1 else both))
    assert len(_sizes(path)) == 6


@_in_job(1, 2)
def test_an_optimizer_that_is_dropped_leaves_nothing(tmp_path):
    path = _begin(tmp_path)
    hooks = nn.modules.module._global_forward_hooks
    before = len(hooks)
    model, optimizer = _start()
    _take(STEPS - 8, model, optimizer)
    gone = weakref.ref(model)
    gc.collect()
    gc.disable()  # nothing may wait for it
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        del optimizer
    assert len(hooks) == before
    del model
    assert gone() is None
    told = "was not written: 5 steps (expected 13)" in said.getvalue()
    assert told == (hvd.rank() == 0)
    assert not path.exists()


@_in_job(2)
def test_a_join_before_the_last_recorded_step_ends_it(tmp_path):
    path, both = _begin(tmp_path), _start()
    _take(STEPS + 3 if hvd.rank() == 0 else 5, *both)
    with pytest.warns(UserWarning, match="a rank joined before 13 steps"):
        hvd.join()
    _take(STEPS, *both)
    hvd.shutdown()
    assert not path.exists()


@_in_job(1, 2)
def test_sparse_gradients_are_in_no_profile(tmp_path):
    path = _begin(tmp_path)
    model = nn.ModuleDict({"rows": nn.Embedding(5, 3, sparse=True), "net": _net()})
    for sparse_as_dense in (False, True):
        _, optimizer = _start(model, sparse_as_dense=sparse_as_dense)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model["net"](model["rows"](torch.tensor([0, 2]))).sum().backward()
            optimizer.step()
        del optimizer
    names = {f"net.{name}" for name, _ in _net().named_parameters()}
    assert set(_sizes(path)) == names
    assert set(_sizes(tmp_path / "net.2.json")) == names | {"rows.weight"}


@_in_job(1)
def test_optimizers_that_have_no_profile_say_so(tmp_path):
    _begin(tmp_path)
    for arguments, of in (
        ({"schedule": "decoupled"}, "schedule='decoupled'"),
        ({"op": hvd.Adasum}, "op=Adasum"),
    ):
        model = _net()
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.warns(UserWarning, match=f"no profile is written .* with {of}") as told:
            hvd.DistributedOptimizer(sgd, model.named_parameters(), model=model, **arguments)
        assert told[0].filename == __file__


@on_ranks(2)
def test_ranks_with_other_gradients_are_told():
    layer = nn.Linear(3, 2 + hvd.rank())
    recorder = StepRecorder(list(layer.named_parameters()))
    with pytest.warns(UserWarning, match="different names or sizes"):
        assert slowest_of_all(recorder, "net", hvd.global_process_set) is None
    recorder.detach()


# --- what hooks note


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


@on_ranks(1)
def test_compiled_modules_are_recorded_and_their_graphs_stay_whole():
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
