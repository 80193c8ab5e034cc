"""AIACC_AUTOTUNE: the number of lanes changes while a job trains, on all ranks at once."""

import contextlib
import io
import re
from functools import partial
from itertools import groupby

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from tests.support.jobs import in_job
from tests.support.learning.training import Recipe, compare, flat, squares, train
from tests.support.ranks import run_ranks


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Tanh(), torch.nn.Linear(400, 9))


@in_job
def _train_while_tuning(steps):
    assert aiacc.stats()["lanes"] == 8
    seen = []

    def tuned(training):
        seen.clear()
        for step in range(steps):
            train(training, [step])
            seen.append(aiacc.stats()["lanes"])

    sgd, loss = partial(torch.optim.SGD, lr=0.1), squares(4, 300, dtype=torch.float32)
    model = compare(tuned, Recipe(_net, sgd, loss)).model
    assert not torch.equal(flat(model), flat(_net()))
    return seen


def test_all_ranks_change_lanes_together_and_settle():
    # Units of 64 KiB, so that the first layer fills several lanes.
    first, second = run_ranks(
        2, _train_while_tuning, 70, env={"AIACC_AUTOTUNE": "1", "AIACC_UNIT_BYTES": "65536"}
    )
    # A rank may look before or after the round that changes the number.
    assert [lanes for lanes, _ in groupby(first)] == [lanes for lanes, _ in groupby(second)]
    assert set(first) == {1, 2, 4, 8}
    assert len(set(first[-8:] + second[-8:])) == 1


@in_job
def _lanes():
    return aiacc.stats()["lanes"]


def test_a_given_number_is_the_most():
    assert run_ranks(2, _lanes, env={"AIACC_AUTOTUNE": "1", "AIACC_LANES": "2"}) == [2, 2]
    assert run_ranks(1, _lanes, env={"AIACC_AUTOTUNE": "1"}) == [1]


def _told_at_the_end(of, steps):
    torch.set_num_threads(1)
    dist.init_process_group("aiacc")
    model = torch.nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    if of == "optimizer":
        sgd = hvd.DistributedOptimizer(sgd, model.named_parameters())
    model = DistributedDataParallel(model) if of == "ddp" else model
    for _ in range(steps):
        sgd.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        sgd.step()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        dist.destroy_process_group()
    return said.getvalue()


@pytest.mark.parametrize(
    ("settings", "of", "steps", "text"),
    [
        ("AIACC_AUTOTUNE=1", "ddp", 1, "AUTOTUNE: .* no DistributedOptimizer of torch has ended"),
        ("AIACC_AUTOTUNE=1", "optimizer", 2, r"not found in 2 steps \(expected 41 or more\)"),
        ("AIACC_AUTOTUNE=1", "optimizer", 41, ""),
        ("AIACC_AUTOTUNE=1 AIACC_LANES=1", "optimizer", 1, "AUTOTUNE: there was 1 lane"),
        ("AIACC_PROFILE=/tmp/never.json", "ddp", 1, "/tmp/never.json was not written, since no D"),
        ("AIACC_PROFILE=/tmp/never.json", "optimizer", 2, ""),  # whose own end tells
    ],
)
def test_settings_that_come_to_nothing_are_told_at_the_end(settings, of, steps, text):
    env = dict(setting.split("=") for setting in settings.split())
    first, second = run_ranks(2, _told_at_the_end, of, steps, env=env)
    assert re.fullmatch(f"aiacc: .*{text}.*\n" if text else "", first)
    assert second == ""
