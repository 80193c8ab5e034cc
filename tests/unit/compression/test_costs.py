"""Predicted times of compressed all-reduces: what is printed of them, and chosen by them."""

import math
import random

import pytest

from aiacc.compression.buckets import choose_each, levels
from aiacc.compression.choose import MARGIN, MIB, choose
from aiacc.compression.codecs import BF16, NONE, PAIR, Quantised, Sparse, parse
from aiacc.compression.costs import (
    EXCHANGES,
    FLAT,
    FREE,
    TWO_LEVEL,
    Cluster,
    Speeds,
    break_even_bandwidths,
    break_even_density,
    cluster_of,
    predict,
    speeds_from,
)
from aiacc.compression.explain import CODECS, GB_PER_S, explain
from aiacc.planning.cost import ALL_REDUCE, Affine, Analytic, Hierarchical

ELEMENTS = 1 << 20
SHAPES = [(2, 1), (16, 1), (2, 2), (4, 8), (16, 8)]
ALL = tuple(parse(text) for text in ("bf16", "int8", "mstopk:density=0.01"))
SPEEDS = {"bf16": Speeds(8e9, 8e9), "int8": Speeds(4e9, 2e9), "mstopk": Speeds(2e9, 5e8)}


def cluster(hosts, local=1, *, gbit=10.0, inside_gbit=100.0, alpha=0.0):
    """Hosts whose ranks share ``gbit``; every message takes ``alpha`` seconds to start."""
    across = Analytic("ring", alpha, 8e-9 / gbit * local, 0.0, hosts)
    inside = Analytic("ring", alpha, 8e-9 / inside_gbit, 0.0, local)
    return Cluster(hosts, local, across, inside if local > 1 else None)


@pytest.mark.parametrize(("hosts", "local"), SHAPES)
def test_none_costs_what_the_planners_think(hosts, local):
    where = cluster(hosts, local, alpha=1e-5)
    levels = Hierarchical(where.inside, where.across, local)
    for exchange in EXCHANGES:
        found = predict(NONE, ELEMENTS, where, exchange=exchange)
        assert found.seconds == pytest.approx(levels.time(ALL_REDUCE, 4 * ELEMENTS))


@pytest.mark.parametrize(("hosts", "local"), SHAPES)
def test_hitopkcomm_is_its_sum_of_terms(hosts, local):
    alpha, near, far = 1e-5, 8e-11, 8e-10
    where = cluster(hosts, local, alpha=alpha)
    density, speeds = 0.01, Speeds(2e9, 5e8)
    shard = math.ceil(density * ELEMENTS / local)
    found = predict(Sparse("topk", density), ELEMENTS, where, speeds)
    assert found.inside_s == pytest.approx(
        2 * (local - 1) * alpha + 2 * (local - 1) / local * 4 * ELEMENTS * near
    )
    # All ranks of a host gather pairs at a time, over the interface that they share.
    assert found.across_s == pytest.approx(
        (hosts - 1) * alpha + (hosts - 1) * local * shard * PAIR * far
    )
    select, scatter = 4 * ELEMENTS / local / 2e9, hosts * shard * PAIR / 5e8
    assert found.coding_s == pytest.approx(select + scatter)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(("hosts", "local"), SHAPES)
def test_bytes_across_hosts_by_counting_messages(hosts, local, exchange):
    where, ranks = cluster(hosts, local), hosts * local
    pairs = [(one, other) for one in range(ranks) for other in range(ranks) if one != other]
    peers = [(one, other) for one, other in pairs if one % local == other % local]
    flat = exchange == FLAT

    def check(text, messages, **tolerance):
        """Messages are (from, to, bytes)."""
        found = predict(parse(text), ELEMENTS, where, exchange=exchange)
        crossing = sum(n for one, other, n in messages if one // local != other // local)
        assert found.across_bytes == pytest.approx(crossing / ranks, **tolerance)

    def sent(text):
        return parse(text).wire_bytes(ELEMENTS if flat else ELEMENTS // local)

    for text in ("int8", "int4:block=128", "fp8:block=1024"):
        # Shards to their owners, and the sums from them: across hosts once for each rank there is.
        to_owners = [(*pair, sent(text) / ranks) for pair in pairs]
        of_a_shard = [(*pair, sent(text) / hosts) for pair in peers]
        sums = [(*pair, sent(text) / local / hosts) for pair in peers]
        check(text, to_owners + sums if flat else 2 * of_a_shard)
    whole = parse("powersgd").wire_bytes(ELEMENTS)
    check("powersgd", [(*pair, whole / ranks) for pair in peers] * 2)
    # The ranks of a host have a part each.
    part = sent("randomk") / hosts / (local if flat else 1)
    check("randomk", [(*pair, part) for pair in peers] * 2, rel=1e-3)
    check("mstopk:density=0.005", [(*pair, sent("mstopk:density=0.005")) for pair in peers])


@pytest.mark.parametrize(("hosts", "local"), [(16, 1), (16, 8), (1000, 1)])
def test_pairs_beyond_the_break_even_density_cost_what_a_dense_all_reduce_does(hosts, local):
    where = cluster(hosts, local, alpha=1e-5)
    for exchange, ranks in ((TWO_LEVEL, hosts), (FLAT, hosts * local)):
        density = min(0.1, 1.01 * break_even_density(ranks))
        found = predict(Sparse("topk", density), ELEMENTS, where, exchange=exchange)
        assert found == predict(NONE, ELEMENTS, where, exchange=exchange)


@pytest.mark.parametrize("text", ["bf16", "int8", "topk"])
def test_where_exchanges_are_the_same_and_nothing_is_gained(text):
    codec, one_each, one_host = parse(text), cluster(8, alpha=1e-5), cluster(1, 8)
    assert len({predict(codec, 1000, one_each, exchange=name) for name in EXCHANGES}) == 1
    found = predict(codec, ELEMENTS, one_host, Speeds(1e9, 1e9))
    assert found.across_bytes == found.across_s == 0
    assert found.seconds > predict(NONE, ELEMENTS, one_host).seconds


def test_coding_counts_what_is_read():
    where, speeds = cluster(4), Speeds(1e9, 1e8)
    assert predict(NONE, 1000, where, speeds).coding_s == 0
    assert predict(BF16, 1000, where, speeds).coding_s == pytest.approx(4e-6 + 2e-5)
    codec = Quantised("int8")
    expected = 4e-6 * 5 / 4 + 2 * codec.wire_bytes(1000) / 1e8
    assert predict(codec, 1000, where, speeds).coding_s == pytest.approx(expected)
    flat = predict(codec, 1000, cluster(2, 2), speeds, FLAT)
    assert flat.coding_s == pytest.approx(expected)
    assert predict(codec, 1000, where, FREE).coding_s == 0


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("text", ["int8", "int4", "mstopk:density=0.001"])
@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("alpha", [0.0, 1e-5])
def test_at_the_break_even_bandwidth_times_are_equal(text, exchange, local, alpha):
    codec, speeds, cast = parse(text), Speeds(2e9, 1e9), Speeds(8e9, 8e9)

    def both(gbit):
        where = cluster(4, local, gbit=gbit, alpha=alpha)
        return (
            predict(codec, ELEMENTS, where, speeds, exchange),
            predict(BF16, ELEMENTS, where, cast),
        )

    low, bandwidth = break_even_bandwidths(*both(10))
    assert low == 0
    gbit = bandwidth * local * 8e-9
    assert 0 < gbit < math.inf
    one, other = both(gbit)
    assert one.seconds == pytest.approx(other.seconds)
    one, other = both(gbit * 0.9)
    assert one.seconds < other.seconds


def test_break_even_bandwidths_at_the_ends_and_of_more_bytes_with_fewer_startups():
    where = cluster(4)
    none, bf16 = (predict(codec, 9, where) for codec in (NONE, BF16))
    assert break_even_bandwidths(bf16, none) == (0, math.inf)
    assert break_even_bandwidths(none, bf16) == (0, 0)
    assert break_even_bandwidths(none, none) == (0, 0)

    def both(gbit):
        where = cluster(64, gbit=gbit, alpha=1e-4)
        return predict(Sparse("topk", 0.01), ELEMENTS, where), predict(BF16, ELEMENTS, where)

    low, high = break_even_bandwidths(*both(10))
    assert high == math.inf
    for factor, pays in ((0.9, False), (1.1, True)):
        sparse, dense = both(low * 8e-9 * factor)
        assert (sparse.seconds < dense.seconds) == pays


PLAIN = Affine(1e-3, 1e-9)
LEVELS = Hierarchical(Affine(1e-6, 1e-11), PLAIN, 4)


def test_clusters_and_speeds_follow_from_what_was_measured():
    assert cluster_of(PLAIN, 8) == Cluster(8, 1, PLAIN)
    assert cluster_of(LEVELS, 8) == Cluster(2, 4, LEVELS.between, LEVELS.inside)
    assert cluster_of(LEVELS, 3) == Cluster(1, 3, LEVELS.between, LEVELS.inside)
    # 1000 elements in blocks of 256: 1016 bytes. Encoded and decoded twice, half a second each way.
    assert speeds_from(parse("int8"), 1000, 1.0) == Speeds(2 * 2 * 4000, 2 * 2 * 1016)
    assert speeds_from(parse("mstopk"), 1000, 1.0) == Speeds(2 * 4000, 2 * 80)


def test_flat_exchanges_are_the_sum_of_their_terms():
    near, hosts, local = 8e-11, 4, 8
    where, speeds = cluster(hosts, local), Speeds(2e9, 5e8)
    codec = Sparse("topk", 0.01)
    pairs = 32 * codec.wire_bytes(ELEMENTS)
    found = predict(codec, ELEMENTS, where, speeds, FLAT)
    assert found.inside_s == pytest.approx(7 / 8 * pairs * near)
    assert found.coding_s == pytest.approx(4 * ELEMENTS / 2e9 + pairs / 5e8)
    codec = Quantised("int8")
    wire = codec.wire_bytes(ELEMENTS)
    found = predict(codec, ELEMENTS, where, speeds, FLAT)
    # Shards for the other 7 of 32 owners, and all sums, of which the rank has an eighth.
    assert found.inside_s == pytest.approx((7 / 32 + 7 / 8) * wire * near)
    assert found.coding_s == pytest.approx(4 * ELEMENTS * 33 / 32 / 2e9 + 2 * wire / 5e8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: predict(NONE, -1, cluster(2, 8)), r"-1 elements \(expected 0 or more\)"),
        (lambda: break_even_density(1), r"hosts 1 \(expected 2 or more"),
        (
            lambda: predict(NONE, 1, cluster(2), exchange="ring"),
            r"exchange 'ring' \(expected one of flat, two_level\)",
        ),
        (lambda: Speeds(0, 1), r"speeds of 0 and 1 bytes/s \(expected more than 0"),
        (lambda: Cluster(0, 1, PLAIN), r"0 hosts with 1 ranks \(expected 1 or more\)"),
        (lambda: Cluster(2, 2, PLAIN), r"no costs inside hosts of 2 ranks \(expected a cost"),
        (lambda: cluster_of(LEVELS, 6), r"6 ranks on hosts of 4 \(expected a multiple of 4\)"),
        (
            lambda: choose(MIB, cluster(2), {"bf16": SPEEDS["bf16"]}, ALL[:2]),
            r"no speed of int8 \(expected one of each codec that is",
        ),
        (
            lambda: choose(MIB, cluster(2), SPEEDS, ALL, margin=1.0),
            r"margin 1.0 \(expected 0 or more and less than 1\)",
        ),
    ],
)
def test_bad_input_is_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()


# --- what `aiacc-plan explain --compression` prints

BUCKETS = [1 << 20, 3 << 20]


def rows(lines):
    """Cells of the table, by codec and exchange."""
    table = [line.split() for line in lines[lines.index("") + 5 :]]
    assert table[0] == ["codec", "exchange", "ms", *map(str, GB_PER_S)]
    two = {"flat", "two_level"}
    return {
        (row[0], row[1] if row[1] in two else ""): row[2:] if row[1] in two else row[1:]
        for row in table[1:]
    }


def test_tables_for_one_rank_and_several_on_each_host_and_for_a_single_host():
    lines = list(explain(cluster(16, gbit=8), BUCKETS))
    assert lines[:3] == [
        "16 ranks, as if each were a host; 16.00 MiB of float32 in 2 buckets, nothing hidden; "
        "predicted",
        "sparse codecs send less than none below density 0.0625",
        "sparse codecs send less than bf16 below density 0.0312",
    ]
    found = rows(lines)
    assert list(found) == [(text, "") for text in CODECS]
    # 2 x 15 / 16 x 16 MiB at 1 GB/s; half of it is saved, for 4 bytes encoded and 2 decoded.
    assert found["none", ""] == ["31.5"]
    assert found["bf16", ""] == ["15.7", "5", "50", "500"]
    assert found["fp8", ""] == found["int8", ""]
    # Two factors of 1024 x 4 for one bucket, of 1774 x 4 for the other: 2 x 15 / 16 x 87.4 KiB.
    assert found["powersgd:rank=4", ""][0] == "0.168"
    lines = list(explain(cluster(4, 2, gbit=8, inside_gbit=80), BUCKETS))
    assert lines[1:3] == [
        "sparse codecs send less than none with two_level below density 0.25 (0.1 is the most)",
        "sparse codecs send less than bf16 with two_level below density 0.125 (0.1 is the most)",
    ]
    found = rows(lines)
    assert [key for key in found if key[0] == "int8"] == [("int8", "flat"), ("int8", "two_level")]
    for text in CODECS[2:-1]:
        assert float(found[text, "two_level"][0]) < float(found["bf16", ""][0])
    low_rank = [key for key in found if key[0] == CODECS[-1]]
    assert low_rank == [(CODECS[-1], "")], "it has one exchange, of all ranks"
    assert list(explain(cluster(1, 8), BUCKETS[:1])) == [
        "8 ranks on 1 host; 4.00 MiB of float32 in 1 bucket, nothing hidden; predicted",
        "a single host sends nothing to others: no codec pays",
    ]


def test_what_never_pays_and_what_always_does():
    found = rows(list(explain(cluster(4, 8, gbit=8, inside_gbit=80), BUCKETS)))
    # It sends less inside hosts and more across.
    assert found["int8", "flat"][1:] == ["never", "never", ">58.5"]
    # Where it is slow inside hosts, sending pairs there, too, saves more than selecting costs.
    found = rows(list(explain(cluster(2, 8, gbit=8, inside_gbit=8), BUCKETS)))
    assert found["mstopk:density=0.001", "flat"][1:][-1] == "always"


@pytest.mark.parametrize("gbit", [1e-3, 1e3])
def test_break_even_bandwidths_do_not_depend_on_that_of_the_network(gbit):
    expected, found = (
        list(explain(cluster(16, gbit=one, alpha=1e-3), BUCKETS)) for one in (10, gbit)
    )
    assert "Here it is 10." in expected[6]
    assert {key: row[1:] for key, row in rows(found).items()} == {
        key: row[1:] for key, row in rows(expected).items()
    }


# --- which codec a bucket takes, and which those of a job


def random_cluster(rng):
    where = rng.choice([1, 2, 5, 64]), rng.choice([1, 2, 8])
    return cluster(*where, gbit=10 ** rng.uniform(-1, 3), alpha=10 ** rng.uniform(-6, -2))


@pytest.mark.parametrize("seed", range(100))
def test_any_choice_is_predicted_to_save_the_margin(seed):
    rng = random.Random(seed)
    where = random_cluster(rng)
    elements = rng.randint(1, 1 << 26)
    speeds = {name: Speeds(*(10 ** rng.uniform(8, 11) for _ in "ed")) for name in SPEEDS}
    margin = rng.choice((0.0, 0.01, MARGIN, 0.5))
    choice = choose(elements, where, speeds, ALL, margin=margin)
    times = {
        (codec, exchange): predict(codec, elements, where, speeds[codec.name], exchange).seconds
        for codec in ALL
        for exchange in EXCHANGES
    }
    none = predict(NONE, elements, where).seconds
    dense = none if where.hosts == 1 else min(none, times[BF16, TWO_LEVEL])
    assert choice.dense.seconds == dense
    best = dense if where.hosts == 1 else min(times.values())
    expected = best if best < dense * (1 - margin) else dense
    assert choice.chosen.seconds == expected


def test_a_line_says_what_was_chosen_and_for_how_many_buckets():
    assert choose(32 * MIB, cluster(8, gbit=1), SPEEDS, ALL).text == (
        "32 MiB on 8 x 1 ranks: mstopk (two_level) 65.1 ms, predicted "
        "(next: bf16 241 ms; others have to save 20% of dense)"
    )
    assert choose(32 * MIB, cluster(8, gbit=400), SPEEDS, ALL).text.startswith(
        "32 MiB on 8 x 1 ranks: none 1.17 ms, predicted (next: int8"
    )
    assert choose(MIB, cluster(8), {}, ()).text.endswith("none 1.47 ms, predicted")
    assert choose(MIB, cluster(8), SPEEDS).chosen.codec in (NONE, BF16)  # by default
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
