"""Which codec each bucket of a job takes."""

import random

import pytest

from aiacc.compression.buckets import choose_each, levels
from aiacc.compression.choose import MIB, choose
from aiacc.compression.codecs import BF16, NONE, parse
from aiacc.compression.costs import Speeds, predict
from tests.unit.compression.clusters import cluster

SPEEDS = {"bf16": Speeds(8e9, 8e9), "int8": Speeds(4e9, 2e9), "mstopk": Speeds(2e9, 5e8)}
ALL = tuple(parse(text) for text in ("bf16", "int8", "mstopk:density=0.01"))


def codecs(buckets, where, allowed=ALL):
    return [str(one.codec) for one in choose_each(buckets, where, SPEEDS, allowed).chosen]


def test_buckets_of_one_job_may_travel_differently():
    where = cluster(8, gbit=1, alpha=1e-3)
    assert codecs([32 * MIB, 16384, 20 * MIB], where, ALL[:2]) == ["int8", "bf16", "int8"]
    assert codecs([16384], where, ALL[:1]) == ["bf16"]
    slow = {**SPEEDS, "bf16": Speeds(1e6, 1e6)}
    assert choose_each([16384], where, slow, ALL[:2]).chosen[0].codec == NONE


def test_a_line_says_what_for_how_many_buckets():
    where = cluster(8, gbit=1, alpha=1e-3)
    found = choose_each([32 * MIB, 16384, 20 * MIB], where, SPEEDS, ALL[:2])
    assert found.seconds == pytest.approx(sum(one.seconds for one in found.chosen))
    none, bf16 = (
        sum(
            predict(one, size, where, SPEEDS["bf16"]).seconds
            for size in (32 * MIB, 16384, 20 * MIB)
        )
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


@pytest.mark.parametrize("seed", range(50))
def test_each_is_what_it_would_be_alone_and_never_slower_than_all_alike(seed):
    rng = random.Random(seed)
    where = cluster(
        rng.choice([2, 5, 64]),
        rng.choice([1, 2, 8]),
        gbit=10 ** rng.uniform(-1, 3),
        alpha=10 ** rng.uniform(-6, -2),
    )
    sizes = [rng.randint(1, 1 << 24) for _ in range(rng.randint(1, 6))]
    found = choose_each(sizes, where, SPEEDS, ALL)
    assert list(found.chosen) == [choose(size, where, SPEEDS, ALL).chosen for size in sizes]
    for dense in (NONE, BF16):
        alike = sum(predict(dense, size, where, SPEEDS["bf16"]).seconds for size in sizes)
        assert found.seconds <= alike * (1 + 1e-12) or dense == NONE


def test_ranks_of_a_process_set_lie_on_their_own_hosts():
    assert levels([0, 0, 1, 1]) == (2, 2)
    assert levels([0, 1]) == (2, 1)
    assert levels([3, 3]) == (1, 2)
    assert levels([0, 0, 0, 5]) == (2, 1)  # the smallest host has one that talks to others
