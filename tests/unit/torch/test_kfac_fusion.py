"""Which factors travel together, by what operations cost, and how results of solvers travel."""

import pytest
import torch

from aiacc.kfac import step
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import ALL_REDUCE, REDUCE_SCATTER, Affine
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.fusion import Fused, Moment, Planned, by_plan, by_threshold
from aiacc.torch.kfac.measure import dimensions, inversion_table, through_ends
from aiacc.torch.kfac.solvers import CHOLESKY, EIGH, SOLVERS


def test_neighbours_of_one_kind_share_a_bucket_up_to_the_threshold():
    rows = (
        ("a", 60, None, "A"),
        ("b", 40, None, "A"),
        ("c", 10, None, "A"),
        ("d", 10, 0, "A"),
        ("e", 10, 1, "A"),
        ("f", 500, 0, "G"),
        ("g", 10, None, "G"),
    )
    assert by_threshold([Planned(*row) for row in rows], 2, most=100) == [
        Fused(ALL_REDUCE, ("a", "b")),
        Fused(ALL_REDUCE, ("c",)),
        Fused(REDUCE_SCATTER, ("d", "e")),
        Fused(ALL_REDUCE, ("f",)),  # of one owner: the other rank's part would be as large
        Fused(ALL_REDUCE, ("g",)),
    ]
    assert by_threshold([], 2) == []


@pytest.mark.parametrize(("bytes_of_g", "operation"), [(100, REDUCE_SCATTER), (10, ALL_REDUCE)])
def test_parts_of_a_reduce_scatter_are_as_large_as_the_largest(bytes_of_g, operation):
    # Merging saves much, and 2 x the larger one is less than 2 x the sum, or not by enough.
    network = Affine(1.0, 1e-2, {ALL_REDUCE: (1.0, 1e-2), REDUCE_SCATTER: (1.2, 0.5e-2)})
    costs = StageCosts(Polynomial(1.0, 0.0, 0.0), network)
    factors = [Moment("x A", 100, 0.1), Moment("x G", bytes_of_g, 0.2)]
    buckets, gradients = by_plan(factors, [], {"x A": 0, "x G": 1}, costs, 2)
    assert buckets == [Fused(operation, ("x A", "x G"))]
    assert gradients == []


def test_parts_of_many_ranks_do_not_take_many_times_the_memory():
    # To start a reduce-scatter costs half; but 1,000 parts of 4 MB are 4 GB on each rank.
    network = Affine(20.0, 1.6e-9, {ALL_REDUCE: (20.0, 1.6e-9), REDUCE_SCATTER: (10.0, 8e-10)})
    costs = StageCosts(Polynomial(1.0, 0.0, 0.0), network)
    factors = [Moment("x A", 4 << 20, 0.1), Moment("x G", 4 << 20, 0.2)]
    for ranks, operation in ((1000, ALL_REDUCE), (4, REDUCE_SCATTER)):
        buckets, _ = by_plan(factors, [], {"x A": 0, "x G": 1}, costs, ranks)
        assert [one.operation for one in buckets] == [operation], ranks


def test_gradients_go_between_factors_that_are_not_ready():
    costs = StageCosts(Polynomial(1.0, 0.0, 0.0), Affine(0.01, 1e-3))
    factors = [Moment("x A", 10, 0.0), Moment("x G", 10, 9.0)]
    gradients = [Moment("u", 10, 1.0), Moment("v", 10, 1.001)]
    buckets, merged = by_plan(factors, gradients, {}, costs, 2)
    assert [one.names for one in buckets] == [("x A",), ("x G",)]
    assert merged == [("u", "v")]


def test_queues_of_many_are_cut_at_some_places(monkeypatch):
    # Each would leave by itself, for nothing is gained by waiting.
    costs = StageCosts(Polynomial(1.0, 0.0, 0.0), Affine(0.0, 1e-3))
    factors = [Moment(f"{n} A", 10, float(n)) for n in range(10)]
    gradients = [Moment(f"{n} weight", 10, n + 0.5) for n in range(10)]
    buckets, merged = by_plan(factors, gradients, {}, costs, 2)
    assert [one.names for one in buckets] == [(one.name,) for one in factors]
    assert merged == [(one.name,) for one in gradients]
    monkeypatch.setattr(step, "MOST_CUTS", 4)
    buckets, merged = by_plan(factors, gradients, {}, costs, 2)
    for found, all_ in (([one.names for one in buckets], factors), (merged, gradients)):
        assert [len(names) for names in found] == [3, 3, 3, 1]
        assert [name for names in found for name in names] == [one.name for one in all_]


def test_costs_follow_from_the_smallest_and_the_largest_and_points_lie_between():
    # The one between has a burst; a busy machine makes times that fall.
    assert through_ends([(4e3, 1e-3), (1e6, 2e-3), (4e6, 41e-3)]) == (1e-3, 1e-8)
    assert through_ends([(4e3, 5e-3), (1e6, 2e-3)]) == (2e-3, 0.0)
    assert dimensions([64]) == [64]
    assert dimensions([10, 20, 10]) == [10, 20]
    found = dimensions(range(10, 5000, 10))
    assert (found[0], found[-1], len(found)) == (10, 4990, 6)


def test_inversions_are_measured_by_what_computes_them_and_draw_nothing_that_ranks_draw_alike():
    dims, before = [], torch.get_rng_state()

    class Noted:
        def compute(self, means, dampings):
            assert len(means) == len(dampings) == 1
            dims.append(len(means[0]))

    for solver in (SOLVERS[CHOLESKY], Noted()):
        table = inversion_table([3, 8], torch.empty(0), solver)
        assert [dim for dim, _ in table.points] == [3, 8]
    assert sorted(set(dims)) == [3, 8]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("solve", "size"), [(EIGH, 20 + 2 + 90 + 6), (CHOLESKY, 10 + 1 + 45 + 6)])
def test_what_travels_comes_back_as_it_was_and_has_the_size_that_was_said(solve, size):
    torch.manual_seed(0)
    solver, shapes = SOLVERS[solve], [(4, 4), (1, 1), (3, 5, 5), (6,)]
    factors = [Factor("x", shape, torch.float64, torch.device("cpu")) for shape in shapes]
    means = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
    means = [one @ one.mT if one.dim() > 1 else one for one in means]
    computed = solver.compute(means, [torch.tensor(0.1).double().expand(s[:-2]) for s in shapes])
    assert sum(map(solver.size, factors)) == size
    flat = torch.empty(size, dtype=torch.float64)
    solver.pack(computed, flat)
    back = solver.unpack(flat, factors)
    flat.zero_()  # which the results share nothing with
    torch.testing.assert_close(back, computed)
    assert all(one.is_contiguous() for one in back)
    assert [solver.identity(factor).shape for factor in factors] == [one.shape for one in back]
