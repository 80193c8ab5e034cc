"""AIACC_AUTOTUNE: the number of lanes changes while a job trains, on all ranks at once."""

from functools import partial
from itertools import groupby

import torch

import aiacc
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
