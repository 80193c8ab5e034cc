"""Training with the decoupled schedule is that of one process.

What holds for every schedule is in tests/parallel/torch/test_optimizer_situations.py.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import aiacc.torch as hvd
from aiacc import _core
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import (
    NET,
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
from tests.support.jobs import on_ranks
from tests.support.learning.training import Alone, Recipe, Together, train


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
    assert 0 in hvd.allgather_object(len(training.optimizer._shards._segments))
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
    _core.flush = lambda: calls.append(training.optimizer._exchange.under_way) or flush()
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
