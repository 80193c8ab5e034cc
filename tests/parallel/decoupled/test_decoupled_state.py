"""The state of the decoupled schedule: 1/N on each rank, saved and loaded as a plain one."""

import io
import os
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc import basics
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import (
    DECOUPLED,
    adam,
    compare_late,
    loss,
    net,
    rows,
    start,
)
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.training import (
    Alone,
    Recipe,
    check_same_everywhere,
    compare,
    gathers_late,
    train,
)
from tests.support.ranks import run_ranks


def _elements(state):
    return sum(v.numel() for e in state.values() for v in e.values() if isinstance(v, torch.Tensor))


@on_ranks(3)
def test_each_rank_has_its_part_of_the_state():
    training = start(lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), adam)
    training.loss = lambda model, rank, batch: model(torch.ones(2, 64)).sum()
    train(training, range(2))
    mine = hvd.allgather_object(_elements(training.optimizer.state))
    total = 2 * sum(p.numel() for p in training.model.parameters())  # two moments of each element
    assert all(total / 3 * 0.9 < elements < total / 3 * 1.1 for elements in mine)
    assert sum(mine) >= total


def _checkpoint(training):
    file = io.BytesIO()
    optimizer = training.optimizer.state_dict()
    torch.save({"model": training.model.state_dict(), "optimizer": optimizer}, file)
    return file.getvalue()


@in_job
def _saves(schedule):
    """The checkpoint of the second rank, that of the other one being refused; and one later."""
    with gathers_late():
        training = train(start(make_optimizer=adam, schedule=schedule), range(3))
        saved = None
        if schedule == "decoupled":
            with pytest.raises(
                RuntimeError, match=r"call optimizer.consolidate_state_dict.. on ev"
            ):
                training.optimizer.state_dict()
            training.optimizer.consolidate_state_dict(to=1)
        if schedule == "decoupled" and hvd.rank() == 0:
            with pytest.raises(RuntimeError, match=r"expected it collected here"):
                training.optimizer.state_dict()
        else:
            saved = _checkpoint(training)
        train(training, range(3, 6))
        training.state()
        return saved, _checkpoint(training)


@in_job
def _resumes(data):
    """The rest of the training, on the data of two ranks in all."""
    with gathers_late():
        training = train(start(make_optimizer=adam), [7])  # something else, which loading replaces
        loaded = torch.load(io.BytesIO(data), weights_only=True)
        training.model.load_state_dict(loaded["model"])
        training.load(loaded["optimizer"])
        assert training.optimizer.param_groups[0]["lr"] == 0.02
        share = 2 // hvd.size()
        training.loss = lambda model, rank, batch: (
            sum(loss(model, number, batch) for number in range(rank * share, (rank + 1) * share))
            / share
        )
        train(training, range(3, 6))
        training.state()
        return _checkpoint(training)


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("decoupled", 1), ("decoupled", 2), ("all_reduce", 2)]
)
def test_training_goes_on_where_it_was_saved(schedule, ranks):
    """With as many ranks or fewer, and from a checkpoint of the other schedule."""
    (_, expected), (saved, _) = run_ranks(2, _saves, schedule)
    found = run_ranks(ranks, _resumes, saved)[0]
    one, other = (torch.load(io.BytesIO(data), weights_only=True) for data in (found, expected))
    tolerance = {"rtol": 0, "atol": 0} if ranks == 2 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(one, other, **tolerance)


def _large():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 500), nn.Tanh(), nn.Linear(500, 3))


def _with_state(training):
    train(training, range(4))
    if not isinstance(training, Alone):
        (bucket,) = training.optimizer._exchange.buckets
        assert bucket.layout.parts == 4
        mine = _elements(training.optimizer.state)
        assert 0.45 < mine / _elements(training.state()["state"]) < 0.55
        training.load(training.state())
    return training.state()


@on_ranks(2, env={"AIACC_LANES": "4"})
def test_a_bucket_that_lanes_share_has_the_same_state():
    """As on hosts of a rank each, where the lanes share a planned bucket."""
    basics.local_size = lambda: 1
    names = tuple(name for name, _ in _large().named_parameters())
    compare_late(
        _with_state,
        Recipe(_large, adam, lambda m, rank, batch: m(rows(rank, batch, 200)).pow(2).mean()),
        plan=Plan("mine", (names[::-1],), "decoupled"),
    )


@on_ranks(2, each={"options": [{}, DECOUPLED]})
def test_an_optimizer_that_has_state_and_a_scheduler_is_wrapped(options):
    schedulers = []

    def used_before(parameters):
        optimizer = adam(parameters)
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        for parameter in [p for group in optimizer.param_groups for p in group["params"]]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return optimizer

    def scheduled(training):
        warnings.simplefilter("error")  # as torch has for a scheduler whose optimizer rests
        later = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
        for batch in range(3):
            train(training, [batch])
            schedulers[-1].step()
            later.step()
        assert training.optimizer.param_groups[1]["lr"] == pytest.approx(0.01 / 64)
        state = training.state()
        assert [entries["step"].item() for entries in state["state"].values()] == [4.0] * 6
        return state["state"]

    compare(scheduled, Recipe(net, used_before, loss), **options)


@on_ranks(2)
def test_the_state_of_a_rank_is_broadcast():
    training = train(start(make_optimizer=adam), range(2))
    optimizer = training.optimizer
    if hvd.rank() == 0:  # who looks for the state of a parameter leaves nothing
        assert "exp_avg" not in optimizer.state[training.model[0].weight]  # it has that of segments
    expected = training.state()
    assert len(expected["state"]) == 6
    optimizer.load_state_dict(adam(net().parameters()).state_dict())
    if hvd.rank() == 1:
        optimizer.load_state_dict(expected)
        optimizer.param_groups[0]["lr"] = 0.75
    hvd.broadcast_optimizer_state(optimizer, 1)
    found = optimizer.state_dict()
    assert found["param_groups"][0]["lr"] == 0.75
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert len(optimizer.state) == len(optimizer._shards._segments)
    train(training, range(2, 3))
    hvd.broadcast_parameters(training.model.state_dict(), 0)


@on_ranks(3)
def test_state_is_broadcast_to_ranks_without_a_part_of_the_first_group():
    def last_apart(parameters):
        *others, last = parameters
        return torch.optim.Adam([{"params": [last], "lr": 0.1}, {"params": others}], 0.01)

    training = train(start(make_optimizer=last_apart, bucket_bytes=4000), range(2))
    parts = len(training.optimizer.param_groups[0]["params"])
    hvd.broadcast_optimizer_state(training.optimizer, root_rank=0)
    train(training, range(2))
    assert 0 in hvd.allgather_object(parts)


@on_ranks(2)
def test_a_new_job_may_have_other_frozen_parameters():
    def frozen():
        model = net()
        model[0].requires_grad_(False)
        return model

    training = train(start(frozen, adam), range(2))
    model = training.model
    training.optimizer.consolidate_state_dict(None)
    hvd.shutdown()
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    hvd.init()
    before = [layer.weight.clone() for layer in (model[0], model[2])]
    train(training, range(2, 4))
    training.optimizer.flush()
    assert not torch.equal(model[0].weight, before[0])
    assert torch.equal(model[2].weight, before[1])
    model[2].requires_grad_(True)
    text = r"parameters that were frozen when .* the job began"
    training.refused(partial(train, batches=[4]), text)
    hvd.barrier()


@pytest.mark.parametrize("consolidates", [True, False])
@on_ranks(3)
def test_a_new_job_of_fewer_ranks(port, other_port, consolidates):
    """Its ranks go on with a state that was collected, and are told to load one otherwise."""
    training = train(start(make_optimizer=adam), range(2))
    optimizer = training.optimizer
    if consolidates:
        optimizer.consolidate_state_dict(None)
    optimizer.flush()
    hvd.barrier()
    rank = hvd.rank()
    hvd.shutdown()
    others = [number for number in range(3) if (number == 2) == (rank == 2)]
    os.environ["AIACC_RANK"] = str(others.index(rank))
    os.environ["AIACC_SIZE"] = str(len(others))
    os.environ["AIACC_ADDR"] = f"127.0.0.1:{other_port if rank == 2 else port}"
    hvd.init()
    training = type(training)(training.model, optimizer, loss)
    if consolidates:
        train(training, range(2, 4))
    elif hvd.size() > 1:
        training.backward(2)
        with pytest.raises(ValueError, match=r"spread over ranks that are gone .* load_state_dict"):
            optimizer.step()
        optimizer.load_state_dict(adam(net().parameters()).state_dict())
        train(training, range(2, 3))
    optimizer.flush()
    check_same_everywhere(training.model)
