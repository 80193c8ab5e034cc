"""PowerSGD of one bucket: what steps of jobs do not show, see tests/parallel/compression."""

import pytest
import torch

from aiacc.torch.reducer.low_rank import LowRank

SHAPES = {"a": (12, 20), "bias": (7,), "b": (6, 4, 3, 3)}
PLACES = [("a", 0), ("b", 2)]


def step(rank, given, factors):
    """Gradients and residuals of two ranks after a step with these gradients."""
    gradients = [[gradient.clone() for gradient in mine] for mine in given]
    residuals = [[torch.zeros(SHAPES[name]) for name, _ in PLACES] for _ in range(2)]
    members = [LowRank(rank, PLACES, own) for own in factors]
    each = zip(members, gradients, residuals, strict=True)
    first = sum(one.begin(mine, left) for one, mine, left in each)
    second = sum([one.project(first.clone()) for one in members])
    for one in members:
        one.finish(second)
    return gradients, residuals


def gradients_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(s, generator=generator) for s in SHAPES.values()] for _ in range(2)]


def test_a_rank_as_large_as_the_matrix_is_the_sum():
    given = gradients_of(0)
    results, residuals = step(100, given, [{}, {}])
    for place in range(3):
        torch.testing.assert_close(results[0][place], given[0][place] + given[1][place])
    for residual in (*residuals[0], *residuals[1]):
        assert residual.abs().max() < 1e-4


def test_gradients_of_zeros_do_not_end_it():
    factors = [{}, {}]
    step(2, [[torch.zeros(shape) for shape in SHAPES.values()]] * 2, factors)
    assert step(2, gradients_of(0), factors)[0][0][0].any()


def test_gradients_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match=r"powersgd of gradients on GPUs \(expected host memory"):
        LowRank(1, [("a", 0)], {}).begin([torch.zeros(3, 3, device="meta")], [None])
