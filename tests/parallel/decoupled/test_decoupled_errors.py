"""What the decoupled schedule refuses, and what becomes of failures."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.exceptions import CollectiveError
from aiacc.planning.plan import Plan
from tests.parallel.decoupled.decoupled_training import begin, check_equal, loss, net, train, wrap
from tests.support.ranks import run_ranks


def _refuses():
    hvd.init()
    model = net()
    names = tuple(name for name, _ in model.named_parameters())
    for arguments, text in (
        ({"schedule": "later"}, "schedule='later' .expected one of all_reduce, decoupled"),
        ({"model": None}, "model=None .expected the torch.nn.Module"),
        ({"model": model[0]}, "'2.weight' belongs to no module of model Linear"),
        ({"op": hvd.Adasum}, "op=Adasum .expected Average or Sum"),
        ({"op": hvd.Max}, "op=Max .expected Average or Sum"),
        ({"compression": hvd.Compression.fp16}, "compression=FP16Compressor .expected"),
        ({"groups": 2}, "'decoupled' with groups"),
        ({"gradient_as_bucket_view": True}, "gradient_as_bucket_view=True .expected False"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 .expected a positive"),
        ({"plan": Plan("x", (names,))}, "plan with schedule 'all_reduce' .expected 'decoupled'"),
        ({"plan": Plan("x", (("head",),), "decoupled")}, "'head' for one"),
    ):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(ValueError, match=text):
            wrap(model, sgd, **{"schedule": "decoupled", "model": model, **arguments})
    with pytest.raises(ValueError, match=r"'decoupled' with LBFGS"):
        wrap(model, torch.optim.LBFGS(model.parameters()))
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"with 6 parameters that are all frozen"):
        wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    model.requires_grad_(True)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"is a DistributedOptimizer .SGD. already"):
        wrap(model, optimizer)
    with pytest.raises(ValueError, match=r"add_param_group of 1 parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match=r"backward_passes_per_step=0"):
        optimizer.set_backward_passes_per_step(0)
    for order in (0, -float("inf"), float("nan")):
        with pytest.raises(ValueError, match=rf"norm_type={order} .expected another number"):
            optimizer.clip_grad_norm_(1.0, order)
    check_equal(model, net())
    hvd.shutdown()


def test_arguments_that_are_not_for_this_schedule():
    run_ranks(2, _refuses)


def _differs(what):
    hvd.init()
    model = net()
    arguments = {}
    if hvd.rank() == 1 and what == "buckets":
        arguments = {"bucket_bytes": 1 << 20}
    if hvd.rank() == 1 and what == "shapes":
        model[4] = nn.Linear(40, 4)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), **arguments)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"the ranks have parameters of different names, shapes"):
        train(model, optimizer, range(1))
    assert all(map(torch.equal, before, model.parameters()))
    hvd.shutdown()


@pytest.mark.parametrize("what", ["buckets", "shapes"])
def test_ranks_with_different_models_are_told(what):
    run_ranks(2, _differs, what)


def _other_schedule():
    hvd.init()
    schedule = "decoupled" if hvd.rank() == 1 else "all_reduce"
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
    before = [parameter.clone() for parameter in model.parameters()]
    text = rf"schedule='{schedule}' on this rank and .* after shutdown\(\) and init\(\) if this job"
    with pytest.raises(ValueError, match=text):
        train(model, optimizer, range(1))
    assert all(map(torch.equal, before, model.parameters()))
    hvd.shutdown()
    hvd.init()
    for schedule in ("all_reduce", "decoupled"):  # with names of gradients that were under way
        model = net()
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        train(model, optimizer, range(1))
        if schedule == "decoupled":
            optimizer.flush()
        assert not any(map(torch.equal, before, model.parameters()))
        check_equal(model, model)
    hvd.shutdown()


def test_ranks_with_different_schedules_are_told():
    run_ranks(3, _other_schedule)


class _Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(50, 8, sparse=True)
        self.last = nn.Linear(8, 2)

    def forward(self, numbers):
        return self.last(self.rows(numbers))


def _sparse_loss(model, step, rank):
    return model(torch.tensor([step, 7 + rank])).pow(2).mean()


def _sparse():
    torch.set_num_threads(1)
    hvd.init()
    model = _Sparse()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"gradient of 'rows.weight' is sparse .* sparse_as_dense"):
        train(model, optimizer, range(1), loss=_sparse_loss)
    models = _Sparse(), _Sparse()
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        optimizer = wrap(model, sgd, schedule, sparse_as_dense=True)
        train(model, optimizer, range(3), loss=_sparse_loss)
    optimizer.flush()
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_sparse_gradients_are_made_dense_or_refused():
    run_ranks(2, _sparse)


def _misuses():
    torch.set_num_threads(1)
    hvd.init()
    models = net(), net()
    expected = wrap(models[0], torch.optim.SGD(models[0].parameters(), 0.1), "all_reduce")
    model = models[1]
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    train(models[0], expected, range(1))
    train(model, optimizer, range(1))

    def clip(optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with pytest.raises(ValueError, match=r"were written to after backward.*clip_grad_norm_"):
        train(model, optimizer, range(1, 2), clip)
    loss(model, 0, hvd.rank()).backward()
    with pytest.raises(AssertionError, match=r"before step.. or synchronize"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match=r"more than backward_passes_per_step=1 times"):
        loss(model, 0, hvd.rank()).backward()
    with (
        pytest.raises(ValueError, match=r"inside skip_synchronize.., but gradients are not"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step()
    with pytest.raises(ValueError, match=r"were written to after backward"):
        optimizer.synchronize()  # the second pass has added to what had left
    train(models[0], expected, range(1, 3))
    train(model, optimizer, range(1, 3))
    optimizer.flush()
    check_equal(model, models[0])
    model.double()
    with pytest.raises(ValueError, match=r"parameter '0.weight' is now of torch.float64, shape"):
        optimizer.step()
    hvd.shutdown()


def _writes_between_backward_and_step():
    hvd.init()
    model = net()
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    before = [p.detach().clone() for p in model.parameters()]

    def clips():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    def replaces():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def writes_to_data():
        model[4].weight.grad.data.clamp_(-1e-3, 1e-3)

    for first in (False, True):
        for write in (clips, replaces, writes_to_data):
            loss(model, 0, hvd.rank()).backward()
            if first:
                optimizer.synchronize()
            write()
            with pytest.raises(ValueError, match=r"were written to after backward"):
                optimizer.step()
            optimizer.zero_grad()
            for old, new in zip(before, model.parameters(), strict=True):
                assert torch.equal(old, new)
    loss(model, 0, hvd.rank()).backward()
    optimizer.synchronize()
    optimizer.step()
    optimizer.flush()
    assert not torch.equal(before[-1], list(model.parameters())[-1])
    hvd.shutdown()


def test_writes_between_backward_and_step_are_told():
    run_ranks(2, _writes_between_backward_and_step)


def _writes_in_a_pre_hook():
    hvd.init()
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    before = [p.detach().clone() for p in model.parameters()]

    def clips(*arguments):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    hook = optimizer.register_step_pre_hook(clips)
    with pytest.raises(ValueError, match=r"were written to after backward"):
        train(model, optimizer, range(1))
    assert all(map(torch.equal, before, model.parameters()))
    hook.remove()
    train(model, optimizer, range(1))
    optimizer.flush()
    assert not any(map(torch.equal, before, model.parameters()))
    hvd.shutdown()


def test_writes_in_a_pre_hook_are_told():
    run_ranks(2, _writes_in_a_pre_hook)


def test_misuse_is_told_and_changes_nothing():
    run_ranks(2, _misuses)


def _ties_memory():
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(
        ValueError, match=r"'0.weight' and '1.weight' overlap in memory .*nn.Parameter"
    ):
        wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    model[1].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'0.weight' and '1.weight' overlap in memory"):
        wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    model[1].weight = model[0].weight
    model.register_buffer("bias", model[1].bias.detach()[:1])
    with pytest.raises(ValueError, match=r"overlap in memory"):
        wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    model.bias = torch.zeros(1)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    hvd.shutdown()


def test_parameters_that_share_memory_are_refused():
    run_ranks(2, _ties_memory)


def _unfreezes():
    hvd.init()
    model = net()
    model[0].requires_grad_(False)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, range(2))
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"were frozen when the optimizer was made, or the job"):
        train(model, optimizer, range(1))
    hvd.barrier()
    hvd.shutdown()


def test_parameters_that_come_later_are_refused():
    run_ranks(2, _unfreezes)


def _starts_anew_after_a_failure():
    model, optimizer = begin()
    train(model, optimizer, range(2))
    optimizer.consolidate_state_dict(None)
    optimizer._exchange._fail("the network has gone")
    hvd.shutdown()
    hvd.init()
    with pytest.raises(CollectiveError, match=r"the network has gone; .* load parameters"):
        loss(model, 2, hvd.rank())
    hvd.broadcast_parameters(list(model.named_parameters()), 0)
    train(model, optimizer, range(2, 4))
    optimizer.flush()
    check_equal(model, model)
    hvd.shutdown()


def test_a_new_job_mends_no_failure():
    run_ranks(2, _starts_anew_after_a_failure)


def _loads_a_copy():
    model, optimizer = begin()
    average = copy.deepcopy(model)
    train(model, optimizer, range(2))
    optimizer.flush()
    optimizer._exchange._fail("the network has gone")
    average.load_state_dict(net().state_dict())
    hvd.broadcast_parameters(average.state_dict(), 0)
    hvd.broadcast_parameters(list(average.named_parameters()), 0)
    with pytest.raises(CollectiveError, match=r"the network has gone; .* load parameters"):
        optimizer.flush()
    model.load_state_dict(average.state_dict())
    train(model, optimizer, range(2, 4))
    optimizer.flush()
    optimizer._exchange._fail("the network has gone")
    hvd.broadcast_parameters(list(model.named_parameters()), 0)
    train(model, optimizer, range(4, 6))
    optimizer.flush()
    check_equal(model, model)
    hvd.shutdown()


def test_writing_to_a_copy_of_the_model_mends_no_failure():
    run_ranks(2, _loads_a_copy)


def _meet(folder):
    """Rank 2 waits until the others are here, too."""
    if hvd.rank() == 2:
        for fifo in folder.iterdir():
            fifo.open().close()
    else:
        (folder / str(hvd.rank())).open("w").close()


def _loses_a_rank(when, folder):
    model, optimizer = begin()
    train(model, optimizer, range(2))
    optimizer.flush()
    before = [parameter.clone() for parameter in model.parameters()]
    exchange = optimizer._exchange

    def gather():  # all shards have their gradients, the parameters are not sent
        del exchange._gather
        _meet(folder)
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        exchange._gather()

    if when == "gather":
        exchange._gather = gather
        if hvd.rank() == 2:
            train(model, optimizer, range(2, 3))
    else:
        _meet(folder)
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hvd.CollectiveError):
            train(model, optimizer, range(2, 3))
        assert all(map(torch.equal, before, model.parameters()))
        return
    with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
        train(model, optimizer, range(2, 4))  # the forward pass of the second, at the latest
    with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
        model.state_dict()
    with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
        optimizer.step()
    saved = {name: torch.zeros_like(p) for name, p in net().named_parameters()}
    model.load_state_dict(saved)
    assert all(value.eq(0).all() for value in model.state_dict().values())


@pytest.mark.parametrize("when", ["scatter", "gather"])
def test_a_rank_that_dies(when, tmp_path):
    for survivor in ("0", "1"):
        os.mkfifo(tmp_path / survivor)
    run_ranks(3, _loses_a_rank, when, tmp_path, missing=(2,))
