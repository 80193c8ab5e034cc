"""Which codec a bucket takes."""

import random

import pytest

from aiacc.compression.choose import MARGIN, choose
from aiacc.compression.codecs import BF16, NONE, parse
from aiacc.compression.costs import EXCHANGES, FLAT, TWO_LEVEL, Speeds, predict
from tests.unit.compression.clusters import cluster

MIB = 1 << 18  # elements
ALL = tuple(parse(text) for text in ("bf16", "int8", "mstopk:density=0.01"))
SPEEDS = {"bf16": Speeds(8e9, 8e9), "int8": Speeds(4e9, 2e9), "mstopk": Speeds(2e9, 5e8)}


def chosen(where, allowed=ALL, speeds=SPEEDS, **options):
    choice = choose(32 * MIB, where, speeds, allowed, **options)
    return str(choice.chosen.codec), choice.chosen.exchange


def test_slow_networks_choose_what_sends_least():
    assert chosen(cluster(8, gbit=1)) == ("mstopk", TWO_LEVEL)
    assert chosen(cluster(8, gbit=1), ALL[:2]) == ("int8", TWO_LEVEL)
    assert chosen(cluster(8, gbit=1), ALL[:1]) == ("bf16", TWO_LEVEL)


def test_fast_networks_stay_dense():
    assert chosen(cluster(8, gbit=10)) == ("bf16", TWO_LEVEL)
    assert chosen(cluster(8, gbit=400)) == ("none", TWO_LEVEL)


def test_a_single_host_stays_dense():
    assert chosen(cluster(1, 8, inside_gbit=1)) == ("none", TWO_LEVEL)


def test_many_hosts_make_sparse_codecs_long():
    assert chosen(cluster(300, gbit=1)) == ("int8", TWO_LEVEL)


def test_slow_codecs_are_not_chosen():
    slow = dict.fromkeys(SPEEDS, Speeds(1e7, 1e7))
    assert chosen(cluster(8, gbit=1), speeds=slow) == ("none", TWO_LEVEL)


def test_what_nobody_allowed_is_not_chosen():
    assert chosen(cluster(8, gbit=1), (), {}) == ("none", TWO_LEVEL)
    assert choose(MIB, cluster(8), SPEEDS).chosen.codec in (NONE, BF16)  # by default


def test_little_data_is_gathered_by_all_at_once():
    where = cluster(2, 2, gbit=10, inside_gbit=1)
    allowed = (parse("mstopk:density=0.001"),)
    assert chosen(where, allowed) == ("mstopk:density=0.001", FLAT)


def test_others_have_to_save_the_margin():
    where = cluster(8, gbit=4)
    choice = choose(32 * MIB, where, SPEEDS, ALL[:2], margin=0)
    saves = 1 - choice.chosen.seconds / choice.dense.seconds
    assert str(choice.chosen.codec) == "int8"
    assert 0 < saves < 0.9
    assert chosen(where, ALL[:2], margin=saves - 1e-6) == ("int8", TWO_LEVEL)
    assert chosen(where, ALL[:2], margin=saves + 1e-6) == ("bf16", TWO_LEVEL)


@pytest.mark.parametrize("seed", range(100))
def test_any_choice_is_predicted_to_save_the_margin(seed):
    rng = random.Random(seed)
    hosts, local = rng.choice([1, 2, 5, 64]), rng.choice([1, 2, 8])
    where = cluster(hosts, local, gbit=10 ** rng.uniform(-1, 3), alpha=10 ** rng.uniform(-6, -3))
    elements = rng.randint(1, 1 << 26)
    speeds = {name: Speeds(*(10 ** rng.uniform(8, 11) for _ in "ed")) for name in SPEEDS}
    choice = choose(elements, where, speeds, ALL)
    times = {
        (codec, exchange): predict(codec, elements, where, speeds[codec.name], exchange).seconds
        for codec in ALL
        for exchange in EXCHANGES
    }
    none = predict(NONE, elements, where).seconds
    dense = none if hosts == 1 else min(none, times[BF16, TWO_LEVEL])
    assert choice.dense.seconds == dense
    best = dense if hosts == 1 else min(times.values())
    expected = best if best < dense * (1 - MARGIN) else dense
    assert choice.chosen.seconds == expected


def test_a_line_says_what_was_chosen():
    text = choose(32 * MIB, cluster(8, gbit=1), SPEEDS, ALL).text
    assert text == (
        "32 MiB on 8 x 1 ranks: mstopk (two_level) 65.1 ms, predicted "
        "(next: bf16 241 ms; others have to save 20% of dense)"
    )
    assert choose(32 * MIB, cluster(8, gbit=400), SPEEDS, ALL).text.startswith(
        "32 MiB on 8 x 1 ranks: none 1.17 ms, predicted (next: int8"
    )
    assert choose(MIB, cluster(8), {}, ()).text.endswith("none 1.47 ms, predicted")


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"no speed of int8 \(expected one of each codec that is"):
        choose(MIB, cluster(2), {"bf16": SPEEDS["bf16"]}, ALL[:2])
    with pytest.raises(ValueError, match=r"margin 1.0 \(expected 0 or more and less than 1\)"):
        choose(MIB, cluster(2), SPEEDS, ALL, margin=1.0)
