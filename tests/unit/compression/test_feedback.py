"""What the references of feedback keep, over steps and ranks."""

import numpy as np
import pytest
import torch

from aiacc.compression import feedback
from aiacc.compression.feedback import Momentum, Residual
from tests.support.learning.codes import largest

SEEDS = range(20)
STEPS = 30
ZEROS = np.zeros((5, 7), np.float32)


def rounded(x):
    """A codec that rounds to multiples of the largest value / 7, as 4 bits with a scale do."""
    scale = max(np.float32(np.abs(x).max() / 7), np.float32(1e-30))
    return np.rint(x / scale).astype(np.float32) * scale


def gradients(seed, count):
    """Whole numbers, so that float32 sums of them are exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1000, 1000, ZEROS.shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_residual_keeps_the_sum_of_every_step(beta):
    for seed in SEEDS:
        left = ZEROS
        for gradient in gradients(seed, STEPS):
            before = left
            decoded, left = feedback.residual(gradient, before, rounded, Residual(beta))
            assert np.abs(left).max() > 0
            # Two sums of numbers below 4096.
            expected = gradient + np.float32(beta) * before
            np.testing.assert_allclose(decoded + left, expected, rtol=0, atol=2 * 2**-12)


def dgc(gradients_of_steps, k, factor):
    """Deep Gradient Compression, algorithm 4, element by element."""
    size = gradients_of_steps[0].size
    u, v, sent = [0.0] * size, [0.0] * size, []
    for gradient in gradients_of_steps:
        for i, g in enumerate(gradient.ravel()):
            u[i] = factor * u[i] + float(g)
            v[i] += u[i]
        chosen = sorted(range(size), key=lambda i: -abs(v[i]))[:k]
        sent.append([v[i] if i in chosen else 0.0 for i in range(size)])
        for i in chosen:
            u[i] = v[i] = 0.0
    return sent


@pytest.mark.parametrize("seed", SEEDS)
def test_momentum_with_masking_is_that_of_dgc(seed):
    steps, state = gradients(seed, STEPS), (ZEROS, ZEROS)
    for gradient, expected in zip(steps, dgc(steps, 4, 0.5), strict=True):
        velocity, before = state
        decoded, state = feedback.momentum(gradient, state, largest(4), Momentum(0.5))
        np.testing.assert_allclose(decoded.ravel(), expected, rtol=1e-5)
        assert not state[0][decoded != 0].any()
        assert not state[1][decoded != 0].any()
        assert np.array_equal(decoded + state[1], before + (np.float32(0.5) * velocity + gradient))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_without_masking_is_that_of_the_optimizer(nesterov):
    kind = Momentum(0.5, masking=False, nesterov=nesterov)
    parameter = torch.zeros(5, 7, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 1.0, momentum=0.5, nesterov=nesterov)
    state, sent = (ZEROS, ZEROS), ZEROS.astype(float)
    for gradient in gradients(1, STEPS):
        decoded, state = feedback.momentum(gradient, state, largest(4), kind)
        sent = sent + decoded
        parameter.grad = torch.from_numpy(gradient.astype(float))
        optimizer.step()
    expected = -parameter.detach().numpy()
    # In every step one sum below 2^13, and some of smaller numbers, are rounded.
    np.testing.assert_allclose(sent + state[1], expected, rtol=0, atol=STEPS * 2**-11)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_known_of_a_gradient_contracts(seed):
    (gradient,) = gradients(seed, 1)
    known, k = ZEROS, 4
    for _ in range(STEPS):
        error = np.square(gradient - known).sum()
        contribution, known = feedback.ef21(gradient, known, largest(k))
        assert contribution is known
        assert np.square(gradient - known).sum() <= (1 - k / gradient.size) * error
    assert np.array_equal(known, gradient)


#: Each kind as a function of gradient and state, and what that state is.
KINDS = {
    "residual": (lambda g, s: feedback.residual(g, s[0], largest(2), Residual(0.9)), 1),
    "momentum": (lambda g, s: feedback.momentum(g, s, largest(2)), 2),
    "ef21": (lambda g, s: feedback.ef21(g, s[0], largest(2)), 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_leaves_no_trace_and_arguments_are_left_alone_or_refused(kind):
    step_of, states = KINDS[kind]
    gradient, state = gradients(1, 2)
    copies = gradient.copy(), state.copy()
    decoded, after = step_of(gradient, (state, state))
    for result in (decoded, *(after if isinstance(after, tuple) else (after,))):
        assert result.dtype == np.float32
    assert np.array_equal(gradient, copies[0])
    assert np.array_equal(state, copies[1])
    for bad in (np.nan, np.inf, -np.inf):
        gradient[2, 3] = bad
        decoded, after = step_of(gradient, (state, state))
        assert decoded is gradient
        for one in after if isinstance(after, tuple) else (after,):
            assert one is state
    text = r"state of shape \(7, 5\) for a gradient of shape \(5, 7\) \(expected the same; start"
    with pytest.raises(ValueError, match=text):
        step_of(gradient, (state, state.T)[-states:])
