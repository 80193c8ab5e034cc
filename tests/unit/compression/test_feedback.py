"""What the references of feedback keep, over steps and ranks."""

import numpy as np
import pytest
import torch

from aiacc.compression import feedback
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual

SEEDS = range(20)
STEPS = 30


def top(k):
    """A codec that keeps the ``k`` largest of an array."""

    def code(x):
        decoded = np.zeros_like(x)
        chosen = np.argsort(-np.abs(x).ravel(), kind="stable")[:k]
        decoded.flat[chosen] = x.flat[chosen]
        return decoded

    return code


def rounded(x):
    """A codec that rounds to multiples of the largest value / 7, as 4 bits with a scale do."""
    scale = max(np.float32(np.abs(x).max() / 7), np.float32(1e-30))
    return np.rint(x / scale).astype(np.float32) * scale


def gradients(seed, count, shape=(5, 7)):
    """Whole numbers, so that float32 sums of them are exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1000, 1000, shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_residual_loses_nothing_over_ranks_and_steps(seed):
    ranks, k = 3, 1 + seed
    left = [np.zeros((5, 7), np.float32)] * ranks
    sent = submitted = np.zeros((5, 7), np.float32)
    for step in range(STEPS):
        for rank, gradient in enumerate(gradients((seed, step), ranks)):
            decoded, left[rank] = feedback.residual(gradient, left[rank], top(k))
            assert np.count_nonzero(decoded) <= k
            sent, submitted = sent + decoded, submitted + gradient
    assert np.array_equal(sent + sum(left), submitted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_residual_keeps_the_sum_of_every_step(seed, beta):
    left = np.zeros((5, 7), np.float32)
    for gradient in gradients(seed, STEPS):
        before = left
        decoded, left = feedback.residual(gradient, before, rounded, Residual(beta))
        assert np.abs(left).max() > 0
        np.testing.assert_allclose(decoded + left, gradient + np.float32(beta) * before, atol=1e-3)


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
    steps = gradients(seed, STEPS)
    state = (np.zeros((5, 7), np.float32),) * 2
    for gradient, expected in zip(steps, dgc(steps, 4, 0.5), strict=True):
        decoded, state = feedback.momentum(gradient, state, top(4), Momentum(0.5))
        np.testing.assert_allclose(decoded.ravel(), expected, rtol=1e-5)
        assert not state[0][decoded != 0].any()
        assert not state[1][decoded != 0].any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("masking", [True, False])
def test_momentum_keeps_the_sum_of_every_step(seed, masking):
    state = (np.zeros((5, 7), np.float32),) * 2
    for gradient in gradients(seed, STEPS):
        velocity, before = state
        decoded, state = feedback.momentum(gradient, state, top(4), Momentum(0.5, masking))
        expected = before + (np.float32(0.5) * velocity + gradient)
        assert np.array_equal(decoded + state[1], expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_without_masking_is_that_of_the_optimizer(nesterov):
    kind = Momentum(0.5, masking=False, nesterov=nesterov)
    parameter = torch.zeros(5, 7, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 1.0, momentum=0.5, nesterov=nesterov)
    state = (np.zeros((5, 7), np.float32),) * 2
    sent = np.zeros((5, 7), np.float32)
    for gradient in gradients(1, STEPS):
        decoded, state = feedback.momentum(gradient, state, top(4), kind)
        sent = sent + decoded
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    expected = -parameter.detach().numpy()
    np.testing.assert_allclose(sent + state[1], expected, rtol=1e-4, atol=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_known_of_a_gradient_contracts(seed):
    gradient = gradients(seed, 1)[0]
    known, k = np.zeros((5, 7), np.float32), 4
    for _ in range(STEPS):
        error = np.square(gradient - known).sum()
        contribution, known = feedback.ef21(gradient, known, top(k))
        assert contribution is known
        assert np.square(gradient - known).sum() <= (1 - k / gradient.size) * error
    assert np.array_equal(known, gradient)


def descended(step_of):
    """Distance to the optimum after steps on the quadratics of three ranks.

    Richtarik et al., "EF21", on f_i(x) = |x - b_i|^2 / 2: the sum of gradients is 0 at the mean of
    the b_i, the single ones are not.
    """
    optima = [np.float32(b) for b in ([-9, 1, 2], [4, -8, 1], [2, 3, -7])]
    x = np.array([5, 5, 5], np.float32)
    state = [np.zeros(3, np.float32)] * 3
    for _ in range(400):
        contributions = []
        for rank, optimum in enumerate(optima):
            contribution, state[rank] = step_of(x - optimum, state[rank])
            contributions.append(contribution)
        x = x - np.float32(0.1) * np.mean(contributions, axis=0)
    return float(np.linalg.norm(x - np.mean(optima, axis=0)))


def test_ef21_finds_the_optimum_of_a_quadratic():
    assert descended(lambda g, known: feedback.ef21(g, known, top(1))) < 1e-4
    assert descended(lambda g, state: (top(1)(g), state)) > 0.1  # without feedback


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_passes_and_leaves_no_trace(bad):
    gradient, state = gradients(1, 2)
    gradient[2, 3] = bad
    decoded, left = feedback.residual(gradient, state, top(2))
    assert decoded is gradient
    assert left is state
    decoded, pair = feedback.momentum(gradient, (state, state), top(2))
    assert decoded is gradient
    assert pair[0] is state
    assert pair[1] is state
    decoded, known = feedback.ef21(gradient, state, top(2))
    assert decoded is gradient
    assert known is state


def test_results_are_float32_and_arguments_are_left_alone():
    gradient, state = gradients(1, 2)
    copies = gradient.copy(), state.copy()
    decoded, left = feedback.residual(gradient, state, top(2), Residual(0.9))
    _, (velocity, accumulated) = feedback.momentum(gradient, (state, state), top(2))
    known, _ = feedback.ef21(gradient, state, top(2))
    results = (decoded, left, velocity, accumulated, known)
    assert {array.dtype for array in results} == {np.dtype(np.float32)}
    assert np.array_equal(gradient, copies[0])
    assert np.array_equal(state, copies[1])


def test_state_of_another_shape():
    gradient, other = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(
        ValueError, match=r"state of shape \(3, 2\) for a gradient of shape \(2, 3\)"
    ):
        feedback.residual(gradient, other, top(1))
    with pytest.raises(ValueError, match="expected the same; start with zeros"):
        feedback.momentum(gradient, (gradient, other), top(1))
    with pytest.raises(ValueError, match="expected the same; start with zeros"):
        feedback.ef21(gradient, other, top(1))


KINDS = {
    "none": NoFeedback(),
    "residual": Residual(),
    "residual:beta=0.9": Residual(0.9),
    "momentum": Momentum(),
    "momentum:momentum=0.5,masking=false": Momentum(0.5, masking=False),
    "momentum:nesterov=true": Momentum(nesterov=True),
    "ef21": EF21(),
}


@pytest.mark.parametrize("text", KINDS)
def test_texts_there_and_back(text):
    assert feedback.parse(text) == KINDS[text]
    assert str(KINDS[text]) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ef22", "feedback 'ef22' .expected one of none, residual, momentum, ef21"),
        ("ef21:beta=1", "option 'beta' .ef21 takes none"),
        ("residual:beta=0", "beta 0.0 of residual .*to forget what is lost use none"),
        ("residual:beta=1.5", "beta 1.5 of residual .expected more than 0 and at most 1"),
        ("momentum:momentum=1", "momentum 1.0 .expected 0 or more and less than 1"),
        ("momentum:masking=no", "masking=no .expected true or false"),
    ],
)
def test_bad_texts_are_named(text, error):
    with pytest.raises(ValueError, match=error):
        feedback.parse(text)


def test_numbers_of_numpy_are_numbers():
    for kind in (np.float16, np.float32, np.float64):
        assert repr(Residual(kind(0.5))) == repr(Residual(0.5))
        assert repr(Momentum(kind(0.5))) == repr(Momentum(0.5))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Residual("x"), r"beta 'x' of residual \(expected a number"),
        (lambda: Residual(True), r"beta True of residual \(expected a number"),
        (lambda: Momentum("0.9"), r"momentum '0\.9' of momentum \(expected a number"),
        (lambda: Momentum(0.9, "no"), r"masking 'no' of momentum \(expected True or False"),
        (lambda: Momentum(nesterov=1), r"nesterov 1 of momentum \(expected True or False"),
    ],
)
def test_arguments_of_other_types_are_named(make, text):
    with pytest.raises(TypeError, match=text):
        make()
