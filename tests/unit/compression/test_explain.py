"""What `aiacc-plan explain --compression` prints."""

import pytest

from aiacc.compression.costs import Cluster
from aiacc.compression.explain import CODECS, GB_PER_S, explain
from aiacc.planning.cost import ALL_REDUCE, REDUCE_SCATTER, Table
from tests.unit.compression.clusters import cluster

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


def test_one_rank_on_each_host():
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


def test_several_ranks_on_each_host():
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


def test_what_never_pays_and_what_always_does():
    found = rows(list(explain(cluster(4, 8, gbit=8, inside_gbit=80), BUCKETS)))
    # It sends less inside hosts and more across.
    assert found["int8", "flat"][1:] == ["never", "never", ">58.5"]
    # Where it is slow inside hosts, sending pairs there, too, saves more than selecting costs.
    found = rows(list(explain(cluster(2, 8, gbit=8, inside_gbit=8), BUCKETS)))
    assert found["mstopk:density=0.001", "flat"][1:][-1] == "always"


def test_a_single_host():
    assert list(explain(cluster(1, 8), BUCKETS[:1])) == [
        "8 ranks on 1 host; 4.00 MiB of float32 in 1 bucket, nothing hidden; predicted",
        "a single host sends nothing to others: no codec pays",
    ]


@pytest.mark.parametrize("gbit", [1e-3, 1e3])
def test_break_even_bandwidths_do_not_depend_on_that_of_the_network(gbit):
    expected, found = (
        list(explain(cluster(16, gbit=one, alpha=1e-3), BUCKETS)) for one in (10, gbit)
    )
    assert "Here it is 10." in expected[6]
    assert {key: row[1:] for key, row in rows(found).items()} == {
        key: row[1:] for key, row in rows(expected).items()
    }


@pytest.mark.parametrize("gbit", [0.3, 3, 30, 300])
@pytest.mark.parametrize("alpha", [0, 1e-5, 1e-3])
def test_what_is_slower_in_the_table_does_not_pay_at_its_bandwidth(gbit, alpha):
    cost = Table({
        (ALL_REDUCE, 1): [(1 << 10, alpha + 1e-6), (1 << 30, alpha + 8 / gbit)],
        (REDUCE_SCATTER, 1): [(1 << 10, 2 * alpha + 1e-6), (1 << 30, 2 * alpha + 12 / gbit)],
    })  # fmt: skip
    lines = list(explain(Cluster(2, 1, cost), BUCKETS))
    here = float(lines[6].rpartition(" ")[2].rstrip("."))
    found = rows(lines)
    slower = [
        text for text in CODECS[2:] if float(found[text, ""][0]) > float(found["bf16", ""][0])
    ]
    for text in slower:
        fastest = found[text, ""][-1]
        above = fastest.startswith(">")
        assert fastest == "never" or (float(fastest.lstrip(">")) > here) == above
    assert slower or alpha < 1e-3
