"""PowerSGD of one bucket: how good its products are. Sums and residuals: tests/parallel."""

import pytest
import torch

from aiacc.torch.reducer.low_rank import LowRank

SHAPES = {"a": (12, 20), "bias": (7,), "b": (6, 4, 3, 3)}
PLACES = [("a", 0), ("b", 2)]


class Ranks:
    """Two of them, with residuals and factors of their own."""

    def __init__(self, rank):
        self.rank = rank
        self.residuals = [[torch.zeros(SHAPES[n]) for n, _ in PLACES] for _ in range(2)]
        self.factors = [{}, {}]

    def step(self, given):
        """What is in the gradients of each rank then."""
        gradients = [[gradient.clone() for gradient in mine] for mine in given]
        members = [LowRank(self.rank, PLACES, factors) for factors in self.factors]
        each = list(zip(members, gradients, self.residuals, strict=True))
        summed = sum(one.begin(mine, left) for one, mine, left in each)
        summed = sum([one.project(summed.clone()) for one in members])
        for one in members:
            one.finish(summed)
        return gradients


def gradients_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(s, generator=generator) for s in SHAPES.values()] for _ in range(2)]


def test_a_rank_as_large_as_the_matrix_is_the_sum():
    ranks = Ranks(rank=100)
    given = gradients_of(0)
    for place, result in enumerate(ranks.step(given)[0]):
        torch.testing.assert_close(result, given[0][place] + given[1][place])
    for residual in (*ranks.residuals[0], *ranks.residuals[1]):
        assert residual.abs().max() < 1e-4


def test_with_warm_start_steps_find_the_best_approximation():
    """Of a gradient that stays: a power iteration (the paper, section 3)."""
    ranks = Ranks(rank=2)
    given, _ = gradients_of(3)
    u, s, v = torch.linalg.svd(given[0])
    s[2:] *= 0.5
    given[0] = u @ torch.diag(s) @ v[:12]
    best = u[:, :2] @ torch.diag(s[:2]) @ v[:2]
    for _ in range(30):
        for residual in (*ranks.residuals[0], *ranks.residuals[1]):
            residual.zero_()
        result, _ = ranks.step([given, given])
    torch.testing.assert_close(result[0], 2 * best, rtol=0, atol=2e-2)


def test_gradients_of_zeros_do_not_end_it():
    ranks = Ranks(rank=2)
    ranks.step([[torch.zeros(shape) for shape in SHAPES.values()]] * 2)
    assert ranks.step(gradients_of(0))[0][0].any()


def test_gradients_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match=r"powersgd of gradients on GPUs \(expected host memory"):
        LowRank(1, [("a", 0)], {}).begin([torch.zeros(3, 3, device="meta")], [None])
