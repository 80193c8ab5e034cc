"""PowerSGD of one bucket, on ranks that are all here."""

import pytest
import torch

from aiacc.torch.reducer.low_rank import LowRank

SHAPES = {"a": (12, 20), "bias": (7,), "b": (6, 4, 3, 3)}
PLACES = [("a", 0), ("b", 2)]


class Ranks:
    """Several of them, with residuals and factors of their own."""

    def __init__(self, size, rank=2):
        self.rank = rank
        self.residuals = [{n: torch.zeros(SHAPES[n]) for n, _ in PLACES} for _ in range(size)]
        self.factors = [{} for _ in range(size)]

    def step(self, gradients, absent=(), scale=1.0):
        """What is in the gradients of each rank then; sums of doubles are those of all ranks."""
        gradients = [[g.clone() for g in mine] for mine in gradients]
        members = [
            LowRank(self.rank, PLACES, factors) if rank not in absent else None
            for rank, factors in enumerate(self.factors)
        ]
        summed = sum(
            one.begin(mine, [left[n] for n, _ in PLACES], scale)
            for one, mine, left in zip(members, gradients, self.residuals, strict=True)
            if one is not None
        )
        seconds = [one.project(summed.clone()) for one in members if one is not None]
        if seconds[0] is None:
            assert all(second is None for second in seconds)
            return gradients
        summed = sum(seconds)
        for one in members:
            if one is not None:
                one.finish(summed)
        return gradients


def gradients_of(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=generator) for shape in SHAPES.values()] for _ in range(size)
    ]


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("absent", [(), (1,)])
def test_sums_and_residuals_are_all_there_was(absent, scale):
    ranks = Ranks(3)
    present = [rank for rank in range(3) if rank not in absent]
    for step in range(5):
        before = [{n: r.clone() for n, r in left.items()} for left in ranks.residuals]
        given = gradients_of(3, step)
        results = ranks.step(given, absent, scale)
        for name, place in PLACES:
            total = sum(given[rank][place].double() for rank in present)
            total += sum(before[rank][name].double() for rank in range(3)) / scale
            after = results[present[0]][place].double()
            after = after + sum(left[name].double() for left in ranks.residuals) / scale
            torch.testing.assert_close(after, total, rtol=0, atol=1e-4)
        torch.testing.assert_close(
            results[present[0]][1], sum(given[rank][1] for rank in present), rtol=0, atol=1e-5
        )
        for rank in present[1:]:
            for one, other in zip(results[rank], results[present[0]], strict=True):
                assert torch.equal(one, other)
    assert all(residual.any() for left in ranks.residuals[2:] for residual in left.values())


def test_a_rank_as_large_as_the_matrix_is_the_sum():
    ranks = Ranks(2, rank=100)
    given = gradients_of(2, 0)
    results = ranks.step(given)
    for place in range(3):
        torch.testing.assert_close(results[0][place], given[0][place] + given[1][place])
    for left in ranks.residuals:
        for residual in left.values():
            assert residual.abs().max() < 1e-4


def test_with_warm_start_steps_find_the_best_approximation():
    """Of a gradient that stays: a power iteration (the paper, section 3)."""
    ranks = Ranks(1)
    (given,) = gradients_of(1, 3)
    u, s, v = torch.linalg.svd(given[0])
    s[2:] *= 0.5
    given[0] = u @ torch.diag(s) @ v[:12]
    best = u[:, :2] @ torch.diag(s[:2]) @ v[:2]
    for _ in range(30):
        for residual in ranks.residuals[0].values():
            residual.zero_()
        (result,) = ranks.step([given])
    torch.testing.assert_close(result[0], best, rtol=0, atol=1e-2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen_by_all_and_leaves_no_trace(bad):
    ranks = Ranks(2)
    ranks.step(gradients_of(2, 0))
    before = [{n: r.clone() for n, r in left.items()} for left in ranks.residuals]
    factors = [{n: f.clone() for n, f in own.items()} for own in ranks.factors]
    given = gradients_of(2, 1)
    given[1][2][3, 2, 1, 0] = bad
    for result in ranks.step(given):
        assert not result[2].isfinite().any()
    for rank in range(2):
        for name in before[rank]:
            assert torch.equal(before[rank][name], ranks.residuals[rank][name])
            assert torch.equal(factors[rank][name], ranks.factors[rank][name])
    assert all(one.isfinite().all() for one in ranks.step(gradients_of(2, 2))[0])


def test_gradients_of_zeros_do_not_end_it():
    ranks = Ranks(2)
    ranks.step([[torch.zeros(shape) for shape in SHAPES.values()]] * 2)
    given = gradients_of(2, 0)
    assert ranks.step(given)[0][0].any()


def test_the_first_factors_are_the_same_on_all_ranks_and_of_their_names():
    ranks = Ranks(2)
    ranks.step(gradients_of(2, 0))
    again = Ranks(2)
    again.step(gradients_of(2, 0))
    for name, _ in PLACES:
        assert torch.equal(ranks.factors[0][name], ranks.factors[1][name])
        assert torch.equal(ranks.factors[0][name], again.factors[0][name])


def test_gradients_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match=r"powersgd of gradients on GPUs \(expected host memory"):
        LowRank(1, [("a", 0)], {}).begin([torch.zeros(3, 3, device="meta")], [None])
