"""What AIACC_PROFILE writes."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import weakref

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.autotune.profile import COUNTED, WARM_UP, slowest_of_all
from aiacc.planning.trace import Trace
from aiacc.torch.recorder import StepRecorder
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


@_in_job(2)
def test_too_few_steps_write_nothing(tmp_path):
    path = _begin(tmp_path)
    _take(STEPS - 1, *_start())
    hvd.shutdown()
    assert not path.exists()


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
    _begin(tmp_path)
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
    assert "was not written: 5 steps (expected 13)" in said.getvalue()


@_in_job(2)
def test_a_join_before_the_last_recorded_step_ends_it(tmp_path):
    path, both = _begin(tmp_path), _start()
    _take(STEPS + 3 if hvd.rank() == 0 else 5, *both)
    with pytest.warns(UserWarning, match="a rank joined before 13 steps"):
        hvd.join()
    _take(STEPS, *both)
    hvd.shutdown()
    assert not path.exists()


@_in_job(2)
def test_a_second_optimizer_has_a_file_of_its_own(tmp_path):
    path = _begin(tmp_path)
    first, second = _start(), _start(nn.Linear(3, 1))
    for _ in range(STEPS):
        _step(*first)
        _step(*second)
    assert [len(_sizes(one)) for one in (path, tmp_path / "net.2.json")] == [6, 2]


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


@pytest.mark.parametrize("failing", [0, 1])
@on_ranks(2)
def test_a_rank_whose_times_cannot_be_read_has_no_trace(failing):
    model = _net()
    recorder = StepRecorder(list(model.named_parameters()))
    for _ in range(STEPS):
        _step(model, torch.optim.SGD(model.parameters(), 0.1))
        recorder.step_done()
    recorder.detach()
    if hvd.rank() == failing:
        recorder._between = None
        with pytest.warns(UserWarning, match="the recorded times cannot be read, TypeError"):
            assert slowest_of_all(recorder, "net", hvd.global_process_set) is None
    else:
        assert slowest_of_all(recorder, "net", hvd.global_process_set) is not None
