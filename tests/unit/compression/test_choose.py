"""Which codec a bucket takes, and which those of a job."""

import random

import pytest

from aiacc.compression.buckets import choose_each, levels
from aiacc.compression.choose import MARGIN, MIB, choose
from aiacc.compression.codecs import BF16, NONE, parse
from aiacc.compression.costs import EXCHANGES, TWO_LEVEL, Speeds, predict
from tests.unit.compression.clusters import cluster

ALL = tuple(parse(text) for text in ("bf16", "int8", "mstopk:density=0.01"))
SPEEDS = {"bf16": Speeds(8e9, 8e9), "int8": Speeds(4e9, 2e9), "mstopk": Speeds(2e9, 5e8)}
GIGABIT = cluster(8, gbit=1)


def test_others_have_to_save_the_margin():
    where = cluster(8, gbit=4)
    choice = choose(32 * MIB, where, SPEEDS, ALL[:2], margin=0)
    saves = 1 - choice.chosen.seconds / choice.dense.seconds
    assert str(choice.chosen.codec) == "int8"
    assert 0 < saves < 0.9
    for margin, codec in ((saves - 1e-6, "int8"), (saves + 1e-6, "bf16")):
        found = choose(32 * MIB, where, SPEEDS, ALL[:2], margin=margin)
        assert str(found.chosen.codec) == codec
    assert choose(MIB, cluster(8), SPEEDS).chosen.codec in (NONE, BF16)  # by default


def random_cluster(rng):
    where = rng.choice([1, 2, 5, 64]), rng.choice([1, 2, 8])
    return cluster(*where, gbit=10 ** rng.uniform(-1, 3), alpha=10 ** rng.uniform(-6, -2))


@pytest.mark.parametrize("seed", range(100))
def test_any_choice_is_predicted_to_save_the_margin(seed):
    rng = random.Random(seed)
    where = random_cluster(rng)
    elements = rng.randint(1, 1 << 26)
    speeds = {name: Speeds(*(10 ** rng.uniform(8, 11) for _ in "ed")) for name in SPEEDS}
    choice = choose(elements, where, speeds, ALL)
    times = {
        (codec, exchange): predict(codec, elements, where, speeds[codec.name], exchange).seconds
        for codec in ALL
        for exchange in EXCHANGES
    }
    none = predict(NONE, elements, where).seconds
    dense = none if where.hosts == 1 else min(none, times[BF16, TWO_LEVEL])
    assert choice.dense.seconds == dense
    best = dense if where.hosts == 1 else min(times.values())
    expected = best if best < dense * (1 - MARGIN) else dense
    assert choice.chosen.seconds == expected


def test_a_line_says_what_was_chosen_and_for_how_many_buckets():
    assert choose(32 * MIB, GIGABIT, SPEEDS, ALL).text == (
        "32 MiB on 8 x 1 ranks: mstopk (two_level) 65.1 ms, predicted "
        "(next: bf16 241 ms; others have to save 20% of dense)"
    )
    assert choose(32 * MIB, cluster(8, gbit=400), SPEEDS, ALL).text.startswith(
        "32 MiB on 8 x 1 ranks: none 1.17 ms, predicted (next: int8"
    )
    assert choose(MIB, cluster(8), {}, ()).text.endswith("none 1.47 ms, predicted")
    where, sizes = cluster(8, gbit=1, alpha=1e-3), (32 * MIB, 16384, 20 * MIB)
    found = choose_each(sizes, where, SPEEDS, ALL[:2])
    assert [str(one.codec) for one in found.chosen] == ["int8", "bf16", "int8"]
    none, bf16 = (
        sum(predict(one, size, where, SPEEDS["bf16"]).seconds for size in sizes)
        for one in (NONE, BF16)
    )
    assert found.text == (
        "int8 for 2 buckets of 52 MiB, bf16 for 1 bucket of 0.0625 MiB on 8 x 1 ranks, "
        f"predicted {found.seconds * 1e3:.3g} ms (all alike: none {none * 1e3:.3g} ms, "
        f"bf16 {bf16 * 1e3:.3g} ms)"
    )
    assert choose_each([], where, SPEEDS).text == (
        "no bucket on 8 x 1 ranks, predicted 0 ms (all alike: none 0 ms, bf16 0 ms)"
    )
    (alone,) = choose_each([16384], where, {**SPEEDS, "bf16": Speeds(1e6, 1e6)}, ALL[:2]).chosen
    assert alone.codec == NONE


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"no speed of int8 \(expected one of each codec that is"):
        choose(MIB, cluster(2), {"bf16": SPEEDS["bf16"]}, ALL[:2])
    with pytest.raises(ValueError, match=r"margin 1.0 \(expected 0 or more and less than 1\)"):
        choose(MIB, cluster(2), SPEEDS, ALL, margin=1.0)


# --- the buckets of a job


@pytest.mark.parametrize("seed", range(50))
def test_each_is_what_it_would_be_alone_and_never_slower_than_all_alike(seed):
    rng = random.Random(seed)
    where = random_cluster(rng)
    sizes = [rng.randint(1, 1 << 24) for _ in range(rng.randint(1, 6))]
    found = choose_each(sizes, where, SPEEDS, ALL)
    assert list(found.chosen) == [choose(size, where, SPEEDS, ALL).chosen for size in sizes]
    assert found.seconds == pytest.approx(sum(one.seconds for one in found.chosen))
    for dense in (NONE, BF16):
        alike = sum(predict(dense, size, where, SPEEDS["bf16"]).seconds for size in sizes)
        assert found.seconds <= alike * (1 + 1e-12) or dense == NONE or where.hosts == 1


def test_ranks_of_a_process_set_lie_on_their_own_hosts():
    assert levels([0, 0, 1, 1]) == (2, 2)
    assert levels([0, 1]) == (2, 1)
    assert levels([3, 3]) == (1, 2)
    assert levels([0, 0, 0, 5]) == (2, 1)  # the smallest host has one that talks to others
