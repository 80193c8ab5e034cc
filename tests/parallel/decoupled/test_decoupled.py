"""Training with the decoupled schedule is that of one process; each rank has a part of the state.

What holds for every schedule is in tests/parallel/torch/test_optimizer_situations.py.
"""

import io
import os
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import aiacc.torch as hvd
from aiacc import _core, basics
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import (
    NET,
    adam,
    all_awaited,
    compare_late,
    copied,
    loss,
    net,
    rows,
    start,
    wrap,
)
from tests.parallel.torch.test_optimizer_situations import KINDS, Net
from tests.parallel.torch.test_optimizer_situations import loss as loss_of_net
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.training import (
    Alone,
    Recipe,
    Together,
    check_same_everywhere,
    gathers_late,
    train,
)
from tests.support.ranks import run_ranks


@on_ranks(2)
def test_buckets_are_those_of_a_plan_or_of_a_size():
    names = [name for name, _ in net().named_parameters()]
    plan = Plan("mine", (tuple(names[:1:-1]), tuple(names[1::-1])), "decoupled")
    assert wrap(net(), plan=plan).buckets == [names[:2], names[2:]]
    assert wrap(net(), bucket_bytes=4000).buckets == [names[:2], names[2:3], names[3:]]


@on_ranks(2)
def test_parameters_keep_their_format_and_frozen_ones_their_memory():
    model = Net()
    train(Together(model, wrap(model), loss_of_net), range(2))
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.frozen.weight.untyped_storage().nbytes() == model.frozen.weight.nbytes


@on_ranks(1)
def test_one_rank_has_a_plain_optimizer():
    def clipped(training):
        norms = []
        for batch in range(3):
            training.zero_grad()
            training.backward(batch)
            norms.append(training.clip(0.1))
            training.step()
        return norms, training.state()

    training = compare_late(clipped, Recipe(net, KINDS["adam"], loss))
    training.optimizer.flush()
    assert training.optimizer.buckets == training.optimizer.awaited == []


@on_ranks(3)
def test_ranks_of_a_process_set_and_others():
    pair = hvd.add_process_set([0, 2])

    def in_set(training):
        train(training, range(3))
        return len(training.state()["state"])

    optimizer = compare_late(in_set, NET, process_set=pair).optimizer
    loss(net(), hvd.rank(), 3).backward()
    assert optimizer.clip_grad_norm_(1.0) > 0
    assert bool(optimizer.buckets) == pair.included()
    hvd.barrier()


def _tiny():
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def _tiny_loss(model, rank, batch):
    overflows = (rank, batch) == (1, 1)
    return model(rows(rank, batch, 2)).pow(2).mean() * (float("inf") if overflows else 1)


def _scaled(training):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    for batch in range(4):
        training.zero_grad()
        training.backward(batch, scaler=scaler)
        training.unscale(scaler)
        training.step(scaler)
    assert scaler.get_scale() == 2.0
    return training.state()


@on_ranks(3, each={"kind": ["nesterov", "adamw"]})
def test_ranks_that_have_no_part_of_the_parameters(kind):
    training = compare_late(_scaled, Recipe(_tiny, KINDS[kind], _tiny_loss))
    assert 0 in hvd.allgather_object(len(training.optimizer._aiacc_shards._segments))
    training.load(training.state())
    training.backward(9)
    training.clip(1.0)
    training.step()


@on_ranks(2)
def test_the_last_bucket_leaves_in_the_backward_pass():
    """Who waits for nothing before the step does not let it linger until then."""
    training = start()
    train(training, range(2))
    flush, calls = _core.flush, []
    _core.flush = lambda: calls.append(training.optimizer._aiacc_exchange.under_way) or flush()
    training.zero_grad()
    training.backward(2)
    assert calls == [True]
    training.step()
    _core.flush = flush


@on_ranks(2, each={"later": [False, True]})
def test_a_gradient_that_another_hook_drops_on_a_rank_counts_as_zeros(later):
    """The hook was there before ours, or comes after it; the gradient has not left by then."""
    model = net()
    dropped = model[4].weight  # of which rank 1 has a part
    drops = [False]

    def drop(parameter):
        if drops[0]:
            parameter.grad = None

    if not later:
        dropped.register_post_accumulate_grad_hook(drop)
    optimizer = wrap(
        model, torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum, bucket_bytes=1 << 20
    )
    if later:
        dropped.register_post_accumulate_grad_hook(drop)
    for batch in range(4):
        drops[:] = [batch == 2 and hvd.rank() == 0]
        before = dropped.detach().clone()
        gradients = [torch.autograd.grad(loss(model, r, batch), dropped)[0] for r in range(2)]
        optimizer.zero_grad()
        loss(model, hvd.rank(), batch).backward()
        optimizer.step()
        given = gradients[1] if batch == 2 else sum(gradients)
        alike = torch.isclose(dropped, before - 0.1 * given)
        unchanged = dropped == before  # rank 0 wants its part so
        assert (alike | unchanged).all()
        assert alike.any()
        assert batch == 2 or alike.all()


@on_ranks(2, each={"how": ["model", "in place", "blocks", "part"]})
def test_compiled_models(how):
    """Compiled code is not compiled anew, and sees no parameter that is awaited."""
    torch._dynamo.reset()
    graphs, counts = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def compiled(training):
        model = call = training.model
        if how == "model":
            call = torch.compile(model, backend=backend)
        elif how == "in place":
            model.compile(backend=backend)
        elif how == "blocks":
            hvd.compile_blocks(model, backend=backend)
        elif how == "part":
            model[2] = torch.compile(model[2], backend=backend)
            if isinstance(training, Together):
                training.optimizer = None
                training.optimizer = wrap(model)
        training.loss = lambda _, rank, batch: loss(call, rank, batch)
        train(training, range(4))
        counts.append(len(graphs))
        train(training, range(4, 7))
        assert len(graphs) == counts[-1]
        assert isinstance(training, Alone) or all_awaited(training.optimizer)

    compare_late(compiled, NET)
    # At most once more: in the first step, which has nothing to wait for, and in the second.
    assert counts[1] - counts[0] <= 2 * counts[0]


@on_ranks(2)
def test_a_compiled_function_of_parameters():
    """What is compiled without the model is right, if slow: it has no hook."""

    def trained_by_a_function(training):
        @torch.compile(backend="eager")
        def on(model, rows):
            hidden = torch.tanh(functional.linear(rows, model[0].weight, model[0].bias))
            hidden = functional.linear(hidden, model[2].weight, model[2].bias)
            return functional.linear(hidden, model[4].weight, model[4].bias).pow(2).mean()

        training.loss = lambda model, rank, batch: on(model, rows(rank, batch))
        train(training, range(5))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo
        compare_late(trained_by_a_function, NET)


# --- gradients that are not finite, of which each rank has a part


def _infinite(model, rank, batch):
    return loss(model, rank, batch) + model[0].weight[0, 0] * float("inf")


@on_ranks(2, each={"order": [2.0, -1.0]})
def test_a_scaler_after_clipping_that_failed_or_hid_infinity(order):
    """The norm of order -1 of what has infinity is finite: the scaler's own question finds it."""
    training = start()
    before = copied(training.model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    training.backward(0, loss=_infinite, scaler=scaler)
    if order == 2.0:
        with pytest.raises(RuntimeError, match=r"norm of order 2.0 of the gradients is inf"):
            training.optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    else:
        assert training.clip(1.0, order).isfinite()
    training.step(scaler)
    assert scaler.get_scale() == 2.0
    assert all(map(torch.equal, training.model.parameters(), before))
    train(training, [1])
    assert all(bool(parameter.isfinite().all()) for parameter in training.model.parameters())


@on_ranks(2)
def test_large_gradients_are_finite():
    """A sum of one rank's elements overflows, and all of them are finite."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.0))
    factors = torch.zeros(64, 64)
    factors[:32] = 1e38  # in rank 0's half
    (model.weight * factors).sum().backward()
    optimizer.synchronize()
    given = [part.grad for part in optimizer.param_groups[0]["params"] if part.grad is not None]
    assert [max(part.tolist()) for part in given] == [pytest.approx([1e38, 0.0][hvd.rank()])]


# --- state: 1/N on each rank, saved and loaded as a plain one


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
        (bucket,) = training.optimizer._aiacc_exchange.buckets
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
    assert len(optimizer.state) == len(optimizer._aiacc_shards._segments)
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
