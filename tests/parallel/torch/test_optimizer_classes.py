"""DistributedOptimizer around every optimizer of torch, and around parameters that change."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from tests.support.ranks import run_ranks
from tests.support.training import flat

CLASSES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
)
STEPS = 4


def _model(name):
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Embedding(9, 3, sparse=True).double()
    layers = [nn.Linear(3, 4, bias=name != "Muon"), nn.Tanh(), nn.Linear(4, 2, bias=name != "Muon")]
    return nn.Sequential(*layers).double()


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    if isinstance(model, nn.Embedding):
        entries = torch.randint(9, (3 + rank,), generator=generator)
        return model(entries).pow(2).sum()
    batch = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return (model(batch) - 1).pow(2).mean()


def _optimizer(name, model):
    parameters = [{"params": [parameter]} for parameter in model.parameters()]
    if name == "LBFGS":
        options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
        return torch.optim.LBFGS(model.parameters(), **options)
    return getattr(torch.optim, name)(parameters, lr=0.05)


def _closure(optimizer, losses):
    def closure():
        optimizer.zero_grad()
        loss = sum(losses()) if inspect.isgeneratorfunction(losses) else losses()
        loss.backward()
        return loss

    return closure


def _alone(name):
    """One process with the data of all ranks."""
    model = _model(name)
    optimizer = _optimizer(name, model)
    for step in range(STEPS):

        def losses(step=step):
            for rank in range(hvd.size()):
                yield _loss(model, rank, step) / hvd.size()

        optimizer.step(_closure(optimizer, losses))
    return model


def _together(name, **options):
    model = _model(name)
    optimizer = hvd.DistributedOptimizer(
        _optimizer(name, model), model.named_parameters(), **options
    )
    assert type(optimizer).__name__ == name
    for step in range(STEPS):
        closure = _closure(optimizer, lambda step=step: _loss(model, hvd.rank(), step))
        if name == "LBFGS" or step % 2:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return model


def _check(model, expected, what):
    torch.testing.assert_close(
        flat(model), flat(expected), rtol=1e-6, atol=1e-9, msg=lambda text: f"{what}: {text}"
    )
    everyones = hvd.allgather(flat(model).reshape(1, -1))
    assert torch.equal(everyones, everyones[:1].expand_as(everyones)), what


def _every_class():
    torch.set_num_threads(1)
    hvd.init()
    for name in CLASSES:
        expected = _alone(name)
        assert not torch.equal(flat(expected), flat(_model(name))), name
        _check(_together(name), expected, name)
        if name != "SparseAdam":
            _check(_together(name, gradient_as_bucket_view=True), expected, f"{name}, buckets")
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_every_optimizer_of_torch(size):
    assert len(CLASSES) >= 13
    run_ranks(size, _every_class)


# --- sparse gradients


def _sparse_gradients():
    torch.set_num_threads(1)
    hvd.init()
    start = torch.arange(12.0).reshape(6, 2)
    embedding = nn.Embedding(6, 2, sparse=True, _weight=start.clone())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), 1.0))
    embedding(torch.tensor([hvd.rank(), hvd.rank(), 5])).sum().backward()
    optimizer.step()
    assert embedding.weight.grad.is_sparse
    expected = start.clone()
    expected[: hvd.size()] -= 2 / hvd.size()
    expected[5] -= 1
    torch.testing.assert_close(embedding.weight.detach(), expected)

    # Not used by rank 0, which knows by now that the gradient is sparse.
    optimizer.zero_grad()
    if hvd.rank() > 0:
        embedding(torch.tensor([3])).sum().backward()
    optimizer.step()
    expected[3] -= (hvd.size() - 1) / hvd.size()
    torch.testing.assert_close(embedding.weight.detach(), expected)

    # Not used by rank 0, which cannot know: an error on every rank, and no hang.
    embedding = nn.Embedding(6, 2, sparse=True)
    other = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), 1.0), [("other", embedding.weight)]
    )
    if hvd.rank() > 0:
        embedding(torch.tensor([3])).sum().backward()
    with pytest.raises(aiacc.MismatchError, match=r"other.*all(gather|reduce)"):
        other.step()
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_sparse_gradients(size):
    run_ranks(size, _sparse_gradients)


# --- copies


def _step(model, optimizer, step):
    optimizer.zero_grad()
    _loss(model, hvd.rank(), step).backward()
    optimizer.step()


def _pickled(both):
    return pickle.loads(pickle.dumps(both))


def _saved(both):
    buffer = io.BytesIO()
    torch.save(both, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def _copies():
    torch.set_num_threads(1)
    hvd.init()
    for options in ({}, {"gradient_as_bucket_view": True}):
        model = _model("Adam")
        optimizer = hvd.DistributedOptimizer(
            _optimizer("Adam", model), model.named_parameters(), **options
        )
        _step(model, optimizer, 0)
        _step(model, optimizer, 1)
        for duplicate in (copy.deepcopy, _pickled, _saved):
            other_model, other = duplicate((model, optimizer))
            assert type(other).__name__ == "Adam"
            assert list(other._parameter_names.values()) == list(
                optimizer._parameter_names.values()
            )
            for step in (2, 3):
                _step(other_model, other, step)
            expected = copy.deepcopy(model)
            plain = _optimizer("Adam", expected)
            plain.load_state_dict(optimizer.state_dict())
            for step in (2, 3):
                plain.zero_grad()
                losses = [_loss(expected, rank, step) / hvd.size() for rank in range(hvd.size())]
                sum(losses).backward()
                plain.step()
            _check(other_model, expected, duplicate.__name__)
            assert not torch.equal(flat(other_model), flat(model))
            del other
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_copies_reduce_the_gradients_of_their_own_parameters(size):
    run_ranks(size, _copies)


# --- parameters that are frozen, unused, added


def _parts():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(2, 2).double() for _ in range(3))


def _sum_of(parts, used, step):
    torch.manual_seed(step)
    batch = torch.randn(3, 2, dtype=torch.float64)
    return sum((parts[number](batch).pow(2).sum() for number in used), torch.zeros(()))


def _changing_parameters(**options):
    """Which parts have gradients differs between steps and ranks; frozen ones stay as they are."""
    parts, plain = _parts(), _parts()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parts[:2].parameters(), 0.1, momentum=0.9),
        parts[:2].named_parameters(),
        **options,
    )
    reference = torch.optim.SGD(plain[:2].parameters(), 0.1, momentum=0.9)
    for step in range(9):
        if step == 2:
            parts[0].requires_grad_(False)
            plain[0].requires_grad_(False)
            frozen = parts[0].weight.clone()
        if step == 5:
            assert torch.equal(parts[0].weight, frozen)
            parts[0].requires_grad_(True)
            plain[0].requires_grad_(True)
        if step == 6:
            optimizer.add_param_group({"params": list(parts[2].parameters()), "lr": 0.05})
            reference.add_param_group({"params": list(plain[2].parameters()), "lr": 0.05})
        live = [0, 1, 2] if step >= 6 else [0, 1] if step not in (2, 3, 4) else [1]
        used = {rank: live[(rank + step) % len(live) :] for rank in range(hvd.size())}
        set_to_none = step % 2 == 0
        optimizer.zero_grad(set_to_none=set_to_none)
        reference.zero_grad()
        loss = _sum_of(parts, used[hvd.rank()], step)
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        total = sum(_sum_of(plain, used[rank], step) for rank in range(hvd.size())) / hvd.size()
        if total.requires_grad:
            total.backward()
        for number in live:
            for parameter in plain[number].parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        reference.step()
        _check(parts, plain, f"step {step} {options}")


def _frozen_on_one_rank(**options):
    parts = _parts()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parts.parameters(), 0.1), parts.named_parameters(), **options
    )
    for step in range(3):
        parts[0].requires_grad_(step == 0 or hvd.rank() > 0)
        optimizer.zero_grad()
        _sum_of(parts, [0, 1], step).backward()
        before = parts[0].weight.detach().clone()
        optimizer.step()
        assert not torch.equal(parts[0].weight, before)
        _check(parts, parts, f"step {step}")


def _changes():
    torch.set_num_threads(1)
    hvd.init()
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_bytes": 64}):
        _changing_parameters(**options)
        _frozen_on_one_rank(**options)
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_changing_parameters(size):
    run_ranks(size, _changes)


def _scaled(optimizer, model, scaler, rank, step, huge):
    optimizer.zero_grad()
    scaler.scale(_loss(model, rank, step) * (float("inf") if huge else 1.0)).backward()


def _scaler_skips_everywhere():
    """An overflow on one rank skips the step on all; the next step is an ordinary one."""
    torch.set_num_threads(1)
    hvd.init()
    for options in ({}, {"gradient_as_bucket_view": True}):
        model = _model("SGD")
        optimizer = hvd.DistributedOptimizer(_optimizer("SGD", model), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            before = flat(model).clone()
            overflows = step == 2
            _scaled(
                optimizer,
                model,
                scaler,
                hvd.rank(),
                step,
                overflows and hvd.rank() == hvd.size() - 1,
            )
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            assert torch.equal(flat(model), before) == overflows
            _check(model, model, f"step {step}")
        assert scaler.get_scale() == 512.0
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_scaler_skips_the_step_everywhere(size):
    run_ranks(size, _scaler_skips_everywhere)


def _lbfgs_refusal():
    hvd.init()
    model = _model("LBFGS")
    optimizer = hvd.DistributedOptimizer(_optimizer("LBFGS", model), model.named_parameters())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.shutdown()


def test_state_of_lbfgs_cannot_be_broadcast():
    run_ranks(2, _lbfgs_refusal)
