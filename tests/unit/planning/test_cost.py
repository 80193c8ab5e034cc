import itertools
import math
import random

import numpy as np
import pytest

from aiacc.planning.cost import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    OPERATIONS,
    REDUCE_SCATTER,
    Affine,
    Analytic,
    Contention,
    Hierarchical,
    Table,
)
from aiacc.planning.fit import fit_affine


def test_affine_costs_of_one_or_two_at_a_time_and_on_two_levels():
    cost = Affine(1.0, 0.5, of={ALL_GATHER: (0.1, 0.2)})
    assert cost.time(ALL_REDUCE, 10) == 6.0
    assert cost.time(REDUCE_SCATTER, 10) == 3.0
    assert cost.time(ALL_GATHER, 10) == pytest.approx(2.1)
    assert cost.time(ALL_REDUCE, np.array([0, 2])).tolist() == [1.0, 2.0]
    cost = Affine(1.0, 2.0, contention=Contention(4 / 3))
    assert [cost.time(ALL_REDUCE, 3, lanes) for lanes in (1, 2, 4)] == [7.0, 10.0, 19.0]
    levels = Affine(1.0, 0.01), Affine(10.0, 1.0)
    cost = Hierarchical(*levels, 4)
    assert cost.time(ALL_REDUCE, 400) == pytest.approx((1 + 4) + (10 + 100))
    assert cost.time(ALL_GATHER, 400) == pytest.approx((0.5 + 2) + (5 + 50))
    assert Hierarchical(*levels, 1).time(ALL_REDUCE, 400) == 410.0


@pytest.mark.parametrize(
    ("algorithm", "a", "b"),
    [
        ("ring", 14 * 3.0, (2 * 5.0 + 7.0) * 7 / 8),
        ("double_tree", 6 * 3.0, 17.0),
        ("recursive_doubling", 3 * 3.0, 3 * 12.0),
        ("halving_doubling", 6 * 3.0, 17.0 - 17.0 / 8),
    ],
)
def test_algorithms_at_8_ranks(algorithm, a, b):
    cost = Analytic(algorithm, 3.0, 5.0, 7.0, 8)
    assert cost.time(ALL_REDUCE, 0) == pytest.approx(a)
    assert cost.time(ALL_REDUCE, 1) - cost.time(ALL_REDUCE, 0) == pytest.approx(b)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_algorithm_takes_less_than_any_all_reduce_and_one_rank_talks_to_nobody(algorithm):
    for n in range(1, 70):
        least = {"alpha": (n - 1).bit_length(), "beta": 2 * (n - 1) / n, "gamma": (n - 1) / n}
        for number, name in enumerate(least):
            units = [float(number == other) for other in range(3)]
            time = Analytic(algorithm, *units, n).time(ALL_REDUCE, 1)
            assert time >= least[name] * (1 - 1e-12), (n, name)
    assert Analytic(algorithm, 1.0, 1.0, 1.0, 1).time(ALL_REDUCE, 1 << 20) == 0.0


def test_tables_rise_for_one_lane_and_for_several():
    table = Table({(ALL_REDUCE, 1): [(10, 2.0), (20, 1.5), (30, 4.0)]})
    assert [table.time(ALL_REDUCE, size) for size in (0, 10, 15, 20, 25, 30, 40)] == [
        1.5, 1.5, 1.5, 1.5, 2.75, 4.0, 6.5,
    ]  # fmt: skip
    assert table.time(REDUCE_SCATTER, 30) == 2.0
    assert table.time(ALL_REDUCE, np.array([10, 40])).tolist() == [1.5, 6.5]
    slow_start = Table({(ALL_REDUCE, 1): [(1, 9.0), (10, 2.0), (30, 4.0)]})
    assert [slow_start.time(ALL_REDUCE, size) for size in (1, 10, 30)] == [2.0, 2.0, 4.0]
    table = Table({(ALL_REDUCE, 1): [(1, 1.0), (2, 2.0)], (ALL_REDUCE, 4): [(1, 3.0), (2, 6.0)]})
    assert [table.time(ALL_REDUCE, 2, lanes) for lanes in (1, 2, 4, 8)] == [2.0, 2.0, 6.0, 12.0]


def random_rows(rng):
    """A table of noise: times fall as bytes grow, and as lanes do."""
    points = {}
    for operation, lanes in itertools.product((ALL_REDUCE, ALL_GATHER), (1, 2, 4)):
        sizes = sorted(rng.sample(range(1, 10**8), 5))
        points[operation, lanes] = [(size, rng.random() + 1e-3) for size in sizes]
    return Table(points)


def test_no_model_falls_as_bytes_or_lanes_grow():
    models = [
        Affine(1e-4, 1e-9, contention=Contention(2.5)),
        *(Analytic(algorithm, 1e-5, 1e-9, 1e-10, 12) for algorithm in ALGORITHMS),
        Hierarchical(Affine(1e-6, 1e-10), Affine(1e-4, 1e-9), 8),
        *(random_rows(random.Random(seed)) for seed in range(20)),
    ]
    sizes = np.geomspace(1, 1e9, 200)
    for model in models:
        for operation in OPERATIONS:
            times = [model.time(operation, sizes, lanes) for lanes in range(1, 9)]
            assert (np.diff(times, axis=0) >= 0).all()
            assert (np.diff(times, axis=1) >= 0).all()


def test_a_fit_finds_what_made_the_samples_and_is_never_negative():
    rng = random.Random(2)
    for _ in range(50):
        a, b = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-11, -9)
        samples = [
            (size, (a + b * size) * rng.gauss(1, 0.05))
            for size in np.geomspace(1 << 10, 1 << 28, 19)
            for _ in range(4)
        ]
        # One in twenty was disturbed.
        samples = [(size, t * (5 if rng.random() < 0.05 else 1)) for size, t in samples]
        found_a, found_b = fit_affine(samples)
        assert found_a == pytest.approx(a, rel=0.1)
        assert found_b == pytest.approx(b, rel=0.1)
    a, b = fit_affine([(1000, 1e-6), (2000, 4e-6), (4000, 16e-6)])
    assert a == 0.0
    assert b > 0


#: Of an all-reduce with one lane.
LINE = [(1, 1.0), (2, 2.0)]


def of_all_reduce(points, lanes=1):
    return Table({(ALL_REDUCE, lanes): points})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Affine(1.0, 0.5).time("reduce", 1), "operation 'reduce'"),
        (lambda: Affine(-1.0, 0.0), "expected finite, >= 0"),
        (lambda: Contention(0.5), "capacity 0"),
        (lambda: Analytic("star", 1.0, 1.0, 1.0, 2), "algorithm 'star'"),
        (lambda: of_all_reduce(LINE).time(ALL_REDUCE, 1, 0), r"lanes 0 \(expected >= 1\)"),
        (lambda: of_all_reduce(LINE, 0), r"all_reduce, 0 lanes \(expected >= 1\)"),
        (lambda: Table({(ALL_GATHER, 1): LINE}), "expected some of all_reduce"),
        (lambda: Hierarchical(Affine(1, 1), Affine(1, 1), 0), r"local 0 \(expected >= 1 rank"),
        (lambda: of_all_reduce([(1, 1.0)]), "all_reduce, 1 lanes: .*two or more"),
        (lambda: of_all_reduce([(2, 1.0), (1, 1.0)]), "all_reduce, 1 lanes: .*ascending"),
        (lambda: of_all_reduce([(1, 1.0), (2, math.nan)]), "1 lanes: .*finite and positive"),
        (lambda: fit_affine([]), "0 samples of 0 sizes"),
        (lambda: fit_affine([(8, 1.0), (8, 2.0)]), "2 samples of 1 sizes"),
        (lambda: fit_affine([(8, 1.0), (16, 0.0)]), "expected positive times"),
        (lambda: fit_affine([(8, 2.0), (16, 1.0), (1 << 20, 1e-3)]), "times do not grow"),
    ],
)
def test_what_no_model_can_answer_is_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()
