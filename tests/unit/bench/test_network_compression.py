"""What the bed of codecs measures, and what the model of costs says of it."""

import pytest

from bench.network.compression.__main__ import merged
from bench.network.compression.cells import CONTENDERS, Cell, chosen, predicted_s
from bench.network.compression.report import automatic, measured_s, table

_BY_NAME = {one.name: one for one in CONTENDERS}


def test_cells_by_name():
    assert [cell.name for cell in chosen("vgg16:300,bert-base:1000")] == [
        "vgg16:300",
        "bert-base:1000",
    ]
    assert len(chosen("all")) == 8
    assert [cell.rounds for cell in chosen("vgg16:300,vgg16:100")] == [2, 1]
    for wrong in ("vgg17:300", "vgg16", "vgg16:fast"):
        with pytest.raises(ValueError, match=wrong):
            chosen(wrong)


def test_a_round_goes_there_and_the_next_one_back():
    cell = Cell("vgg16", 300)
    there = [one.name for one in cell.contenders(0)]
    assert there == [one.name for one in CONTENDERS]
    assert [one.name for one in cell.contenders(1)] == [n for n in there[::-1] if n != "auto"]


def test_fewer_bytes_are_predicted_to_take_less_time():
    sizes = [25_000_000]
    names = ("dense", "bf16", "int8", "int4", "flat", "hitopk")
    seconds = [predicted_s(_BY_NAME[name], sizes, 100, {}) for name in names]
    assert seconds == sorted(seconds, reverse=True)
    # A ring between 4 hosts sends 1.5 times the bytes of each.
    assert seconds[0] == pytest.approx(1.5 * 4 * sizes[0] * 8 / 100e6 * 1514 / 1448, rel=0.05)
    for name in ("powersgd", "low_rank"):
        assert predicted_s(_BY_NAME[name], sizes, 100, {}) is None
    assert predicted_s(_BY_NAME["randomk"], sizes, 100, {}) < seconds[-1]


def test_the_table_has_medians_beside_predictions():
    cell = Cell("vgg16", 300)
    jobs = [{"int8": {"seconds": [3.0, 1.0]}}, {"int8": {"seconds": [2.0]}}]
    run = {
        "cell": {"workload": cell.workload, "mbit": cell.mbit},
        "speeds": {"int8": {"encode": 1e12, "decode": 1e12}},
        "jobs": jobs,
    }
    assert measured_s(run, _BY_NAME["int8"]) == 2.0
    assert measured_s(run, _BY_NAME["dense"]) is None
    line = table([run]).splitlines()[-1]
    assert "| VGG-16" in line
    assert "| 2.00 / " in line
    assert automatic([run]) == ""
    jobs[0].update(dense={"seconds": [4.0]}, bf16={"seconds": [2.0]}, auto={"seconds": [1.0]})
    assert "0.50x the best" in automatic([run])


def test_contenders_that_are_measured_again_take_the_place_of_their_own():
    about = {"when": "", "machine": {}, "versions": {}, "commit": "b", "dirty": False, "load": {}}
    old = {
        "jobs": [{"dense": {"seconds": [1.0]}, "powersgd": {"seconds": [9.0]}},
                 {"powersgd": {"seconds": [8.0]}}],
        "speeds": {"int8": {"encode": 1.0}},
        "commit": "a",
    }  # fmt: skip
    new = {"jobs": [{"powersgd": {"seconds": [2.0]}}], "speeds": {}, **about}
    found = merged(old, new)
    assert found["jobs"] == [{"dense": {"seconds": [1.0]}}, {"powersgd": {"seconds": [2.0]}}]
    assert found["speeds"] == old["speeds"]
    assert found["commit"] == "a"
    assert found["added"] == [{"contenders": ["powersgd"], **about}]
    again = merged(found, new)
    assert [one["contenders"] for one in again["added"]] == [["powersgd"]] * 2
