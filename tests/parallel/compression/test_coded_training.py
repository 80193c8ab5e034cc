"""Training with codecs: overflows, states, and where it ends."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import MSTopK, PowerSGD, Quantised, RandomK, parse
from aiacc.compression.feedback import (
    EF21,
    Momentum,
    NoFeedback,
    Residual,
    ef21,
    momentum,
    residual,
)
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
        for kept in optimizer.feedback.residuals.values():
            assert kept.isfinite().all()
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


# --- a scaler that skips steps


_SCALED = [
    Policy(parse("topk:density=0.05"), least_elements=64),
    Policy(Quantised("int8"), feedback=Residual(), least_elements=64),
    Policy(parse("topk:density=0.05"), feedback=Momentum(0.5), least_elements=64),
    Policy(parse("topk:density=0.05"), feedback=EF21(), least_elements=64),
    Policy(parse("powersgd:rank=2"), least_elements=64),
]


def _scaled_steps(policy, options, overflow, flush):
    """Of five steps the third overflows on one rank, or does not take place."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48))
    optimizer = coding_optimizer(model, policy, lr=0.01, op=hvd.Average, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(5):
        if step == 2 and flush:
            optimizer.feedback.flush()
        if step == 2 and not overflow:
            scaler.update(512.0)
            continue
        optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        loss = model(x).pow(2).mean() * (1e38 if (step, hvd.rank()) == (2, 1) else 1.0)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512
    state = optimizer.feedback.state_dict()["kept"]
    kept = [one.reshape(-1) for of in state.values() for _, one in sorted(of.items())]
    assert any(one.any() for one in kept)
    return torch.cat([*(p.detach().reshape(-1) for p in model.parameters()), *kept])


def _first_step_skipped(policy):
    """By a scaler that nothing has told of before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48))
    optimizer = coding_optimizer(model, policy, lr=0.01, op=hvd.Average)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        loss = model(x).pow(2).mean() * (1e38 if step + hvd.rank() == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(256.0 if step == 1 else None)
        state = optimizer.feedback.state_dict()
        kept = [one for of in state["kept"].values() for one in of.values()]
        assert any(one.any() for one in kept) == (step > 0), policy
        assert bool(state["factors"]) == (step > 0 and isinstance(policy.codec, PowerSGD))
        assert state["scale"] == [1024.0, 512.0, 256.0][step]


def _scaled_by_another():
    """A job may make a scaler anew; what is kept then follows that one."""
    model = nn.Linear(64, 48, bias=False)
    optimizer = coding_optimizer(model, _SCALED[0])
    total, reduced = torch.zeros(48, 64), torch.zeros(48, 64)
    for number in range(2):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(2):
            optimizer.zero_grad()
            gradient = values_of(10 * step + 5 * number + hvd.rank(), 48 * 64).view(48, 64)
            scaler.scale((model.weight * gradient).sum()).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            total += gradient
            reduced += model.weight.grad
            scaler.update(64.0 if (number, step) == (1, 0) else 1024.0)
    state = optimizer.feedback.state_dict()
    left = state["kept"]["residual"]["weight"] / state["scale"]
    torch.testing.assert_close(hvd.allreduce(total - left, op=hvd.Sum), reduced, rtol=0, atol=1e-4)


def _copy_that_skips(policy):
    """Its first step, of which no scaler has told it."""
    torch.manual_seed(0)
    both = (model := nn.Linear(32, 64)), coding_optimizer(model, policy)
    for step in range(2):
        model, optimizer = both = copy.deepcopy(both)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        before = optimizer.feedback.kept.copy()
        optimizer.zero_grad()
        loss = model(torch.ones(8, 32)).pow(2).mean()
        scaler.scale(loss * (1e38 if step + hvd.rank() == 2 else 1.0)).backward()
        scaler.step(optimizer)
    assert any(one.any() for of in before.values() for one in of.values())
    for kind, of in before.items():
        for name, one in of.items():
            assert torch.equal(one, optimizer.feedback.kept.tensors[kind][name]), (policy, kind)


def _skipped_steps(policies):
    hvd.init()
    for policy, options, flush in itertools.product(
        policies, ({}, {"gradient_as_bucket_view": True}), (False, True)
    ):
        with_it, without = (
            _scaled_steps(policy, options, overflow, flush) for overflow in (True, False)
        )
        assert torch.equal(with_it, without), (policy, options, flush)
    for policy in policies:
        _first_step_skipped(policy)
        _copy_that_skips(policy)
    _scaled_by_another()
    hvd.shutdown()


def test_steps_that_a_scaler_skips_leave_no_trace():
    run_over_tcp(2, _skipped_steps, _SCALED)


# --- states


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


def _gathered(folder):
    """Saves what ranks have kept after some steps, each of them, and together."""
    hvd.init()
    states = []
    for policy in _SCALED:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48))
        optimizer = coding_optimizer(model, policy)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(x).pow(2).mean().backward()
            optimizer.step()
        state = optimizer.feedback.gathered_state_dict()
        states.append((optimizer.feedback.state_dict()["kept"], state))
    torch.save(states, f"{folder}/{hvd.rank()}.pt")
    hvd.shutdown()


def _go_on(folder):
    """Sums stay as they were; then one dense step takes all that was left."""
    hvd.init()
    for policy, (_, state) in zip(_SCALED, torch.load(f"{folder}/0.pt"), strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48))
        optimizer = coding_optimizer(model, policy)
        optimizer.feedback.load_state_dict(state)
        mine = optimizer.feedback.state_dict()["kept"]
        for kind, kept in mine.items():
            for name, one in kept.items():
                total = one if kind == "known" else hvd.allreduce(one, op=hvd.Sum)
                torch.testing.assert_close(total, state["kept"][kind][name])
        dense = copy.deepcopy(model)
        total = [torch.zeros_like(p) for p in dense.parameters()]
        for rank in range(hvd.size()):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(rank))
            dense.zero_grad()
            dense(x).pow(2).mean().backward()
            total = [a + p.grad for a, p in zip(total, dense.parameters(), strict=True)]
            if rank == hvd.rank():
                model(x).pow(2).mean().backward()
        optimizer.step()
        for (name, p), gradient in zip(model.named_parameters(), total, strict=True):
            expected = gradient
            if not isinstance(policy.keeps, EF21):
                expected = expected + state["kept"]["residual"].get(name, 0)
            if isinstance(policy.keeps, Momentum):
                expected = expected + 0.5 * state["kept"]["momentum"].get(name, 0)
            torch.testing.assert_close(p.grad, expected, rtol=1e-4, atol=1e-5)
            kept = optimizer.feedback.residuals.get(name)
            assert kept is None or not kept.any()
    hvd.shutdown()


def test_other_numbers_of_ranks_go_on_with_what_all_have_kept(tmp_path):
    run_over_tcp(2, _gathered, str(tmp_path))
    of_ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for policy, (mine, state), (theirs, same) in zip(_SCALED, *of_ranks, strict=True):
        for kind, kept in state["kept"].items():
            for name, total in kept.items():
                wanted = mine[kind][name] + (0 if kind == "known" else theirs[kind][name])
                torch.testing.assert_close(total, wanted)
                assert torch.equal(total, same["kept"][kind][name])
        assert any(one.any() for one in state["kept"]["residual"].values()), policy
    run_over_tcp(3, _go_on, str(tmp_path))


# --- all kinds of feedback, against their references on the gradients of all ranks


def _largest(values):
    """What the others decode of an array."""
    kept = parse("topk:density=0.05").kept(values.size)
    decoded = np.zeros_like(values)
    places = np.argsort(-np.abs(values).ravel())[:kept]
    decoded.ravel()[places] = values.ravel()[places]
    return decoded


_KINDS = (
    *(NoFeedback(), Residual(0.9), Momentum(0.5, masking=False), Momentum(0.5)),
    *(Momentum(0.5, nesterov=True), EF21()),
)


def _like_references(options):
    shape = (40, 30)
    for feedback in _KINDS:
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
                elif isinstance(feedback, EF21):
                    sent, states[rank] = ef21(gradient.numpy(), states[rank], _largest)
                elif isinstance(feedback, Residual):
                    sent, states[rank] = residual(
                        gradient.numpy(), states[rank], _largest, feedback
                    )
                else:
                    sent = _largest(gradient.numpy())
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


def test_every_feedback_is_that_of_its_reference():
    run_over_tcp(2, _all_like_references)


# --- training


_TENTH = MSTopK(density=0.1, mode="exact")


def _quadratic(feedback, codec=_TENTH):
    """Minimises the mean of |w - a_r|^2 / 2 over the ranks; how far from the minimum it ends.

    With feedback theory bounds that. Let e be the mean residual and x = w - lr e. Then the next
    x - w* is (1 - lr) (x - w*) - lr^2 e, and a residual with its gradient g loses at least the
    part d of its square that the largest d of elements are: |e| <= sqrt(1 - d) (|e| + |g|) (Stich
    et al., "Sparsified SGD with memory", NeurIPS 2018). Random elements do so in the mean.
    """
    density, lr, steps = codec.density, 0.01, 700
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(32, 32, generator=generator)
    targets = [common + 0.5 * torch.randn(32, 32, generator=generator) for _ in range(hvd.size())]
    best = torch.stack(targets).mean(0)
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(32, 32))
    policy = Policy(codec, feedback=feedback, least_elements=1)
    optimizer = coding_optimizer(model, policy, lr=lr, op=hvd.Average)
    distance, errors = best.norm().item(), [0.0] * hvd.size()
    for _ in range(steps):
        optimizer.zero_grad()
        gradients = [(model.w.detach() - target).norm().item() for target in targets]
        (model.w - targets[hvd.rank()]).pow(2).sum().div(2).backward()
        optimizer.step()
        distance = (1 - lr) * distance + lr**2 * sum(errors) / hvd.size()
        errors = [(1 - density) ** 0.5 * (e + g) for e, g in zip(errors, gradients, strict=True)]
    check_same(model.w.detach())
    return (model.w - best).norm().item(), distance + lr * sum(errors) / len(errors)


def _with_and_without():
    hvd.init()
    reached = [_quadratic(feedback) for feedback in (Residual(), NoFeedback())]
    reached.append(_quadratic(Residual(), RandomK(density=0.1)))
    hvd.shutdown()
    return reached


def test_with_feedback_training_ends_where_theory_says_and_without_elsewhere():
    ((reached, bound), (without, _), (random, same)), _ = run_over_tcp(2, _with_and_without)
    assert reached <= bound
    assert without > bound
    assert random <= same
