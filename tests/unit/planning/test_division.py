"""Work divided among ranks: placement, waves of exchange, and whether it pays."""

import itertools
import random

import pytest

from aiacc.planning.cost import ALL_GATHER, Affine
from aiacc.planning.division.decision import MARGIN, MOST_WAVES, decide, divide
from aiacc.planning.division.placement import in_waves, longest_first
from tests.unit.planning.instances import busiest


def random_loads(rng, most=8):
    return [rng.choice([rng.random(), rng.random() ** 4, 1.0]) for _ in range(rng.randint(1, most))]


def test_the_longest_first_keeps_graham_s_bound_and_the_order_of_equals():
    rng = random.Random(1)
    for _ in range(200):
        loads, ranks = random_loads(rng, 7), rng.randint(1, 3)
        best = min(
            busiest(loads, owners, ranks)
            for owners in itertools.product(range(ranks), repeat=len(loads))
        )
        found = busiest(loads, longest_first(loads, ranks), ranks)
        assert found <= best * (4 / 3 - 1 / (3 * ranks)) * (1 + 1e-12)
    assert longest_first([1.0, 2.0, 2.0, 1.0], 2) == (0, 0, 1, 1)
    assert longest_first([], 3) == ()


@pytest.mark.parametrize(
    ("loads", "ranks", "text"),
    [([1.0], 0, "0 ranks"), ([-1.0], 2, "load -1.0 of item 0"), ([1, float("nan")], 2, "item 1")],
)
def test_bad_work_is_refused(loads, ranks, text):
    with pytest.raises(ValueError, match=text):
        longest_first(loads, ranks)


def test_waves_hold_every_item_once_and_end_together():
    rng = random.Random(2)
    for _ in range(200):
        loads, ranks = random_loads(rng, 12), rng.randint(1, 4)
        owners, number = longest_first(loads, ranks), rng.randint(1, 6)
        waves = in_waves(loads, owners, ranks, number)
        assert 1 <= len(waves) <= number
        held = [item for one in waves for items in one for item in items]
        assert sorted(held) == list(range(len(loads)))
        assert all(owners[i] == rank for one in waves for rank, own in enumerate(one) for i in own)
        # Longer items before shorter ones on every rank.
        for rank in range(ranks):
            own = [loads[i] for one in waves for i in one[rank]]
            assert own == sorted(own, reverse=True)
    # Of four equal items per rank, two are in each of two waves.
    waves = in_waves([1.0] * 8, longest_first([1.0] * 8, 2), 2, 2)
    assert [[len(own) for own in one] for one in waves] == [[2, 2], [2, 2]]
    assert in_waves([1.0, 2.0], (None, 1), 2, 3) == (((), (1,)),)
    assert in_waves([1.0], (None,), 2, 3) == ()


def test_dividing_pays_where_the_network_is_faster_than_a_rank():
    loads, nbytes = [0.01] * 8, [1e6] * 8
    fast, slow = (Affine(0.0, b, {ALL_GATHER: (1e-4, b)}) for b in (1e-9, 1e-8))
    decision, division = decide(loads, 2, nbytes, fast)
    assert decision.divided
    assert (decision.serial_s, decision.waves) == (pytest.approx(0.08), len(division.waves))
    assert decision.owners == division.owners == longest_first(loads, 2)
    # Half the computation, and the last of the waves' exchanges in the open.
    waves = len(division.waves)
    assert 1 < waves <= MOST_WAVES
    assert decision.divided_s == pytest.approx(0.04 + (waves + 1) * 1e-4 + 8e6 / waves * 1e-9)
    assert "8 tensors divided among 2 ranks" in decision.reason
    decision, division = decide(loads, 2, nbytes, slow)
    assert (decision.divided, division) == (False, None)
    assert decision.divided_s > decision.serial_s * (1 - MARGIN)
    assert "every rank computes all 8 tensors" in decision.reason
    assert decide(loads, 2, nbytes, slow, wish=True)[0].divided
    # What calls were seen to cost beyond that counts.
    decision, _ = decide(loads, 2, nbytes, fast, overhead_s=0.04)
    assert not decision.divided
    assert decision.divided_s > 0.08
    # And so does what all ranks have taken for everything, at the same time.
    decision, _ = decide(loads, 2, nbytes, fast, overhead_s=0.04, serial_s=0.1)
    assert decision.divided
    assert decision.serial_s == 0.1
    loads, nbytes = [0.01] * 8, [10.0] * 8
    dear = Affine(0.0, 0.0, {ALL_GATHER: (0.02, 1e-9)})
    assert len(divide(loads, 2, nbytes, dear).waves) == 1
