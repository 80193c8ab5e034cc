"""The state of the decoupled schedule: 1/N on each rank, saved and loaded as a plain one."""

from __future__ import annotations

import io
import os

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc import basics
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import (
    batch,
    check_equal,
    gather_late,
    net,
    train,
    wrap,
)
from tests.support.ranks import free_port, run_ranks


def _adam(model):
    named = list(model.named_parameters())
    return torch.optim.Adam(
        [{"params": [p for n, p in named if "bias" in n], "lr": 0.02},
         {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.01}],
        0.01,
    )  # fmt: skip


def _elements(state):
    return sum(v.numel() for e in state.values() for v in e.values() if isinstance(v, torch.Tensor))


def _share():
    torch.set_num_threads(1)
    hvd.init()
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = wrap(model, _adam(model), bucket_bytes=1 << 16)
    train(model, optimizer, range(2), loss=lambda m, s, r: m(torch.ones(2, 64)).sum())
    mine = _elements(optimizer.state)
    assert mine == sum(_elements({0: entries}) for entries in optimizer.state.values())
    hvd.shutdown()
    return mine, sum(p.numel() for p in model.parameters())


def test_each_rank_has_its_part_of_the_state():
    found = run_ranks(4, _share)
    total = found[0][1]
    assert all(2 * total / 4 * 0.9 < mine < 2 * total / 4 * 1.1 for mine, _ in found)
    assert sum(mine for mine, _ in found) >= 2 * total  # two moments for each element


def _checkpoint(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return file.getvalue()


def _load(data, model, optimizer):
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])


def _saves():
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    model = net()
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(3))
    with pytest.raises(RuntimeError, match=r"call optimizer.consolidate_state_dict.. on every"):
        optimizer.state_dict()
    optimizer.consolidate_state_dict(to=1)
    if hvd.rank() == 0:
        with pytest.raises(RuntimeError, match=r"expected it collected here"):
            optimizer.state_dict()
        saved = None
    else:
        saved = _checkpoint(model, optimizer)
    train(model, optimizer, range(3, 6))
    optimizer.consolidate_state_dict(to=None)
    end = _checkpoint(model, optimizer)
    hvd.shutdown()
    return saved, end


def _resumes(data, batches_of):
    """The rest of the training, on the data of so many ranks in all."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    model = net()
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(7, 8))  # something else, which loading replaces
    _load(data, model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.02
    share = batches_of // hvd.size()

    def loss(model, step, rank):
        from tests.parallel.decoupled.decoupled_training import loss as of_rank

        ranks = range(rank * share, (rank + 1) * share)
        return sum(of_rank(model, step, number) for number in ranks) / share

    train(model, optimizer, range(3, 6), loss=loss)
    optimizer.consolidate_state_dict()
    end = _checkpoint(model, optimizer) if hvd.rank() == 0 else None
    hvd.shutdown()
    return end


def _check_same(one, other, *, exactly):
    one, other = (torch.load(io.BytesIO(data), weights_only=True) for data in (one, other))
    tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_goes_on_where_it_was_saved(ranks):
    saves = run_ranks(2, _saves)
    end = run_ranks(ranks, _resumes, saves[1][0], 2)[0]
    _check_same(end, saves[0][1], exactly=ranks == 2)


def _shares_lanes():
    """As on hosts of a rank each, where the lanes share a planned bucket."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    basics.local_size = lambda: 1
    ends = []
    for schedule in ("all_reduce", "decoupled"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(200, 500), nn.Tanh(), nn.Linear(500, 3))
        names = tuple(name for name, _ in model.named_parameters())
        plan = Plan("mine", (names[::-1],), schedule) if schedule == "decoupled" else None
        optimizer = wrap(model, _adam(model), schedule, **({"plan": plan} if plan else {}))
        train(model, optimizer, range(4), loss=lambda m, s, r: m(batch(s, r, 200)).pow(2).mean())
        if plan is not None:
            (bucket,) = optimizer._exchange.buckets
            assert bucket.layout.parts == 4
            mine = _elements(optimizer.state)
            optimizer.consolidate_state_dict(to=None)
            assert 0.45 < mine / _elements(optimizer.state_dict()["state"]) < 0.55
        ends.append(_checkpoint(model, optimizer))
        if plan is not None:
            _load(ends[0], model, optimizer)
            optimizer.consolidate_state_dict(to=None)
            _check_same(_checkpoint(model, optimizer), ends[0], exactly=True)
    hvd.shutdown()
    return ends


def test_a_bucket_that_lanes_share_has_the_same_state():
    for all_reduce, decoupled in run_ranks(2, _shares_lanes, env={"AIACC_LANES": "4"}):
        _check_same(decoupled, all_reduce, exactly=True)


def _saves_plain():
    hvd.init()
    model = net()
    optimizer = wrap(model, _adam(model), "all_reduce")
    train(model, optimizer, range(3))
    saved = _checkpoint(model, optimizer)
    train(model, optimizer, range(3, 6))
    end = _checkpoint(model, optimizer)
    hvd.shutdown()
    return saved, end


def test_a_checkpoint_of_the_other_schedule_is_taken():
    saved, end = run_ranks(2, _saves_plain)[0]
    _check_same(run_ranks(2, _resumes, saved, 2)[0], end, exactly=True)


def _wraps_late():
    """Wrapped after steps of its own, with a scheduler of the plain optimizer."""
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        plain = _adam(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
        model(torch.ones(1, 20)).sum().backward()
        plain.step()
        optimizer = wrap(model, plain, schedule)
        for step in range(3):
            train(model, optimizer, [step])
            scheduler.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.01 / 8)
    optimizer.flush()
    check_equal(models[1], models[0])
    optimizer.consolidate_state_dict()
    if hvd.rank() == 0:
        steps = [entries["step"].item() for entries in optimizer.state_dict()["state"].values()]
        assert steps == [4.0] * 6
    hvd.shutdown()


def test_an_optimizer_that_has_state_is_wrapped():
    run_ranks(2, _wraps_late)


def _looks_into_the_state():
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(2))
    if hvd.rank() == 0:
        assert "exp_avg" not in optimizer.state[model[0].weight]  # it has that of segments
    optimizer.consolidate_state_dict(None)
    assert len(optimizer.state_dict()["state"]) == 6
    train(model, optimizer, range(2, 3))
    hvd.shutdown()


def test_looking_for_the_state_of_a_parameter_leaves_nothing():
    run_ranks(2, _looks_into_the_state)


def _broadcasts():
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(2))
    optimizer.consolidate_state_dict(None)
    expected = optimizer.state_dict()
    optimizer.load_state_dict(_adam(net()).state_dict())
    if hvd.rank() == 1:
        optimizer.load_state_dict(expected)
        optimizer.param_groups[0]["lr"] = 0.75
    hvd.broadcast_optimizer_state(optimizer, 1)
    found = optimizer.state_dict()
    assert found["param_groups"][0]["lr"] == 0.75
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert len(optimizer.state) == len(optimizer._shards._segments)
    train(model, optimizer, range(2, 3))
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.shutdown()


def test_the_state_of_a_rank_is_broadcast():
    run_ranks(2, _broadcasts)


def _broadcasts_without_a_part():
    hvd.init()
    model = net()
    *others, last = model.parameters()
    groups = [{"params": [last], "lr": 0.1}, {"params": others}]
    optimizer = wrap(model, torch.optim.Adam(groups, 0.01))
    train(model, optimizer, range(2))
    parts = len(optimizer.param_groups[0]["params"])
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, range(2))
    hvd.shutdown()
    return parts


def test_state_is_broadcast_to_ranks_without_a_part_of_the_first_group():
    assert 0 in run_ranks(3, _broadcasts_without_a_part)


def _new_job_with_others_frozen():
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    model[0].requires_grad_(False)
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(2))
    optimizer.consolidate_state_dict(None)
    hvd.shutdown()
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    hvd.init()
    before = [layer.weight.clone() for layer in (model[0], model[2])]
    train(model, optimizer, range(2, 4))
    optimizer.flush()
    assert not torch.equal(model[0].weight, before[0])
    assert torch.equal(model[2].weight, before[1])
    model[2].requires_grad_(True)
    with pytest.raises(ValueError, match=r"parameters that were frozen when .* the job began"):
        train(model, optimizer, range(4, 5))
    hvd.barrier()
    hvd.shutdown()


def test_a_new_job_may_have_other_frozen_parameters():
    run_ranks(2, _new_job_with_others_frozen)


def _new_job(ports, consolidates):
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer = wrap(model, _adam(model))
    train(model, optimizer, range(2))
    if consolidates:
        optimizer.consolidate_state_dict(None)
    optimizer.flush()
    hvd.barrier()
    rank = hvd.rank()
    hvd.shutdown()
    others = [number for number in range(3) if (number == 2) == (rank == 2)]
    os.environ["AIACC_RANK"] = str(others.index(rank))
    os.environ["AIACC_SIZE"] = str(len(others))
    os.environ["AIACC_ADDR"] = f"127.0.0.1:{ports[rank == 2]}"
    hvd.init()
    if consolidates:
        train(model, optimizer, range(2, 4))
        optimizer.flush()
    elif hvd.size() > 1:
        loss = model(torch.ones(1, 20)).sum()
        loss.backward()
        with pytest.raises(ValueError, match=r"spread over ranks that are gone .* load_state_dict"):
            optimizer.step()
        optimizer.load_state_dict(_adam(net()).state_dict())
        train(model, optimizer, range(2, 3))
        optimizer.flush()
    hvd.shutdown()
    return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("consolidates", [True, False])
def test_a_new_job_of_fewer_ranks(consolidates):
    """Its ranks go on with a state that was collected, and are told to load one otherwise."""
    found = run_ranks(3, _new_job, (free_port(), free_port()), consolidates)
    assert found[0] == found[1]
