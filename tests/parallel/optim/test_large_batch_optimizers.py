"""Optimizers of aiacc.optim on two ranks: as one process with all data, in every schedule."""

import pytest
import torch

import aiacc.torch as hvd
from aiacc.optim import LAMB, LARS, AdamSGD, interpolation, linear_decay
from tests.support.jobs import on_ranks

STEPS = 6


def _model():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )


def _lars(model):
    return LARS(model.parameters(), lr=2.0, weight_decay=0.01, nesterov=True)


def _lamb(model):
    return LAMB(model.named_parameters(), lr=0.02, exclude=("*.bias", "1.*"))


def _hybrid(model):
    optimizer = AdamSGD(model.parameters(), lr=0.02, sgd_lr=0.2, weight_decay=0.01)
    optimizer.follow(interpolation(1, 4))
    return optimizer


def _trained(optimizer_of, distribute, parts, part):
    """Parameters after some steps with one of ``parts`` of every batch."""
    model = _model()
    optimizer = distribute(optimizer_of(model), model)
    scheduler = linear_decay(optimizer, STEPS, warm_up=2, first=0.5)
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        inputs, targets = (torch.randn(8, n, generator=generator) for n in (6, 3))
        optimizer.zero_grad()
        outputs = model(inputs.chunk(parts)[part])
        torch.nn.functional.mse_loss(outputs, targets.chunk(parts)[part]).backward()
        optimizer.step()
        scheduler.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@on_ranks(2)
def test_as_one_process_with_all_the_data():
    rank, size = hvd.rank(), hvd.size()

    def distributed(**options):
        return lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), **options
        )

    for optimizer_of in (_lars, _lamb, _hybrid):
        alone = _trained(optimizer_of, lambda optimizer, model: optimizer, 1, 0)
        for options in ({}, {"plan": "optimal"}, {"gradient_as_bucket_view": True}):
            torch.testing.assert_close(
                _trained(optimizer_of, distributed(**options), size, rank), alone
            )
    for optimizer_of, name in ((_lars, "LARS"), (_lamb, "LAMB")):
        model = _model()
        with pytest.raises(ValueError, match=f"schedule='decoupled' with {name} .*a norm or"):
            distributed(schedule="decoupled", model=model)(optimizer_of(model), model)

    def decoupled(optimizer, model):
        return distributed(schedule="decoupled", model=model)(optimizer, model)

    torch.testing.assert_close(_trained(_hybrid, decoupled, size, rank), alone)


@on_ranks(2)
def test_all_of_a_group_that_is_added_is_reduced():
    """Matrix and bias of a group become two groups; the ranks reduce the gradients of both."""
    rank, size = hvd.rank(), hvd.size()
    for options in ({}, {"op": hvd.Adasum}):
        first, last = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
        hvd.broadcast_parameters([*first.state_dict().items()], root_rank=0)
        hvd.broadcast_parameters([*last.state_dict().items()], root_rank=0)
        optimizer = hvd.DistributedOptimizer(LARS(first.parameters(), lr=2.0), **options)
        optimizer.add_param_group({"params": list(last.parameters())})
        assert [group["adapt"] for group in optimizer.param_groups] == [True, False] * 2
        for step in range(3):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(size * step + rank)
            last(first(torch.randn(8, 6, generator=generator))).square().mean().backward()
            optimizer.step()
        for parameter in (*first.parameters(), *last.parameters()):
            everyones = hvd.allgather(parameter.detach()[None])
            assert torch.equal(everyones, everyones[:1].expand_as(everyones)), options


@on_ranks(2)
def test_a_scheduler_goes_on_after_a_state_was_loaded():
    """A scheduler of the wrapped optimizer sets the rates that a loaded one steps with."""
    for options in ({}, {"op": hvd.Adasum}, {"schedule": "decoupled"}):
        model = _model()
        wrapped = _hybrid(model)
        scheduler = linear_decay(wrapped, STEPS)
        if options.get("schedule"):
            options["model"] = model
        optimizer = hvd.DistributedOptimizer(wrapped, model.named_parameters(), **options)
        for step in range(2):
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step == 0:
                if options.get("schedule"):
                    optimizer.consolidate_state_dict(to=None)
                optimizer.load_state_dict(optimizer.state_dict())
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.02 * (1 - 2 / STEPS)] * len(rates)), options
