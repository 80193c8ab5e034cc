"""Training with codecs: overflows, states, and where it ends."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, Quantised, parse
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual, ef21, momentum
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, coding_optimizer, run_over_tcp, values_of


def _overflow_step(codec, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = coding_optimizer(
        model, Policy(codec, feedback=Residual(), least_elements=64), lr=0.01, **options
    )
    before = None
    for step in range(5):
        optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        loss = model(x).pow(2).mean()
        (loss * (float("inf") if (step, hvd.rank()) == (2, 1) else 1.0)).backward()
        optimizer.synchronize()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        assert finite == (step != 2), "as a GradScaler looks at them, on every rank"
        if finite:
            with optimizer.skip_synchronize():
                optimizer.step()
        for residual in optimizer.feedback.residuals.values():
            assert residual.isfinite().all()
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert before is None or torch.equal(before, after) == (step == 2)
        before = after.clone()
    check_same(before)


def _overflow_steps():
    hvd.init()
    for codec in (Quantised("int8"), Quantised("fp8")):
        for options in ({}, {"gradient_as_bucket_view": True}):
            _overflow_step(codec, options)
    hvd.shutdown()


def test_an_overflow_is_seen_by_all_and_forgotten():
    run_over_tcp(2, _overflow_steps)


def _continued(codec, as_views):
    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        options = (
            {"gradient_as_bucket_view": True}
            if as_views
            else {"groups": [[layer.weight for layer in model]]}
        )
        return model, coding_optimizer(model, Policy(codec, least_elements=64), lr=0.01, **options)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad(set_to_none=False)
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(x).pow(2).mean().backward()
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    model, optimizer = fresh()
    train(model, optimizer, range(3))
    saved = copy.deepcopy((model.state_dict(), optimizer.feedback.state_dict()))
    expected = train(model, optimizer, range(3, 6))
    results = []
    for with_feedback in (True, False):
        model, optimizer = fresh()
        if as_views:
            train(model, optimizer, range(2))  # buckets come with the second step
        model.load_state_dict(saved[0])
        if with_feedback:
            optimizer.feedback.load_state_dict(saved[1])
        results.append(train(model, optimizer, range(3, 6)))
    assert torch.equal(results[0], expected)
    assert not torch.equal(results[1], expected), "what was lost before is missed"


def _all_continued():
    hvd.init()
    for codec in (Quantised("int4"), parse("topk:density=0.05")):
        for as_views in (False, True):
            _continued(codec, as_views)
    hvd.shutdown()


def test_a_state_continues_bit_for_bit():
    run_over_tcp(2, _all_continued)


# --- momentum and EF21, against their references on the gradients of all ranks


def _largest(values):
    """What the others decode of an array."""
    kept = parse("topk:density=0.05").kept(values.size)
    decoded = np.zeros_like(values)
    places = np.argsort(-np.abs(values).ravel())[:kept]
    decoded.ravel()[places] = values.ravel()[places]
    return decoded


def _like_references(options):
    shape = (40, 30)
    for feedback in (Momentum(0.5, masking=False), EF21()):
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(shape))
        policy = Policy(parse("topk:density=0.05"), feedback=feedback, least_elements=64)
        optimizer = coding_optimizer(model, policy, **options)
        zeros = np.zeros(shape, np.float32)
        states = [(zeros, zeros) if isinstance(feedback, Momentum) else zeros for _ in range(2)]
        for step in range(6):
            expected = zeros
            gradients = [
                values_of(10 * step + rank, 1200).view(shape) for rank in range(hvd.size())
            ]
            for rank, gradient in enumerate(gradients):
                if isinstance(feedback, Momentum):
                    sent, states[rank] = momentum(
                        gradient.numpy(), states[rank], _largest, feedback
                    )
                else:
                    sent, states[rank] = ef21(gradient.numpy(), states[rank], _largest)
                expected = expected + sent
            optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
            (model.w * gradients[hvd.rank()]).sum().backward()
            optimizer.step()
            # Numbers below 8 in up to 6 sums, which the next step rounds anew.
            np.testing.assert_allclose(
                model.w.grad.numpy(), expected, rtol=0, atol=(step + 1) * 6 * 2**-22
            )


def _all_like_references():
    hvd.init()
    for options in ({}, {"gradient_as_bucket_view": True}):
        _like_references(options)
    hvd.shutdown()


def test_momentum_and_ef21_are_those_of_their_references():
    run_over_tcp(2, _all_like_references)


# --- training


def _quadratic(feedback):
    """Minimises the mean of |w - a_r|^2 / 2 over the ranks; how far from the minimum it ends.

    With feedback theory bounds that. Let e be the mean residual and x = w - lr e. Then the next
    x - w* is (1 - lr) (x - w*) - lr^2 e, and a residual with its gradient g loses at least the
    part d of its square that the largest d of elements are: |e| <= sqrt(1 - d) (|e| + |g|) (Stich
    et al., "Sparsified SGD with memory", NeurIPS 2018).
    """
    density, lr, steps = 0.1, 0.01, 700
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(32, 32, generator=generator)
    targets = [common + 0.5 * torch.randn(32, 32, generator=generator) for _ in range(hvd.size())]
    best = torch.stack(targets).mean(0)
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(32, 32))
    policy = Policy(MSTopK(density=density, mode="exact"), feedback=feedback, least_elements=1)
    optimizer = coding_optimizer(model, policy, lr=lr, op=hvd.Average)
    distance, residual = best.norm().item(), [0.0] * hvd.size()
    for _ in range(steps):
        optimizer.zero_grad()
        gradients = [(model.w.detach() - target).norm().item() for target in targets]
        (model.w - targets[hvd.rank()]).pow(2).sum().div(2).backward()
        optimizer.step()
        distance = (1 - lr) * distance + lr**2 * sum(residual) / hvd.size()
        residual = [
            (1 - density) ** 0.5 * (e + g) for e, g in zip(residual, gradients, strict=True)
        ]
    check_same(model.w.detach())
    return (model.w - best).norm().item(), distance + lr * sum(residual) / len(residual)


def _with_and_without():
    hvd.init()
    reached = [_quadratic(feedback) for feedback in (Residual(), NoFeedback())]
    hvd.shutdown()
    return reached


def test_with_feedback_training_ends_where_theory_says_and_without_elsewhere():
    ((reached, bound), (without, _)), _ = run_over_tcp(2, _with_and_without)
    assert reached <= bound
    assert without > bound
