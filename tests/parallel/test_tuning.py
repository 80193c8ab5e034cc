"""AIACC_AUTOTUNE: the number of lanes changes while a job trains, on all ranks at once."""

from itertools import groupby

import torch

import aiacc
import aiacc.torch as hvd
from tests.support.learning.training import (
    Alone,
    Together,
    check_parameters,
    distributed,
    flat,
    train,
)
from tests.support.ranks import run_ranks


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(4, 300, generator=generator)).pow(2).mean()


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Tanh(), torch.nn.Linear(400, 9))


def _train_while_tuning(steps):
    hvd.init()
    assert aiacc.stats()["lanes"] == 8
    alone, model = _net(), _net()
    sgd, other = (torch.optim.SGD(one.parameters(), 0.1) for one in (model, alone))
    training = Together(model, distributed(model, sgd), _loss)
    seen = []
    for step in range(steps):
        train(training, [step])
        seen.append(aiacc.stats()["lanes"])
    train(Alone(alone, other, _loss), range(steps))
    assert not torch.equal(flat(model), flat(_net()))
    check_parameters(model, alone, rtol=1e-4, atol=1e-5)
    hvd.shutdown()
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


def _lanes():
    hvd.init()
    lanes = aiacc.stats()["lanes"]
    hvd.shutdown()
    return lanes


def test_a_given_number_is_the_most():
    assert run_ranks(2, _lanes, env={"AIACC_AUTOTUNE": "1", "AIACC_LANES": "2"}) == [2, 2]
    assert run_ranks(1, _lanes, env={"AIACC_AUTOTUNE": "1"}) == [1]
