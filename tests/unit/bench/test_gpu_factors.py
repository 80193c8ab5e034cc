"""Floors and verdicts of bench.gpu.factors, which need no GPU."""

import pytest

from bench.gpu import __main__ as program
from bench.gpu import factors

#: A microsecond a byte.
COPY = {"set": "", "work": "copy", "bytes_read": 4, "bytes_written": 4, "us": [9.0, 8.0, 1.0]}


def judged(work, us):
    row = {"set": "", "work": work, "bytes_read": 7, "bytes_written": 10, "us": [us]}
    return factors.judge([COPY, row])[1]["goals"]


@pytest.mark.parametrize(("us", "met"), [(17.0, True), (20.0, True), (20.1, False)])
def test_kernels_have_85_percent_of_the_bandwidth_of_a_copy(us, met):
    (goal,) = judged("unpack, kernels, graph", us)
    assert (goal["ratio"], goal["met"]) == (17 / us, met)


def test_only_kernels_without_python_have_a_goal():
    for work in ("pack, kernels", "pack, torch's indexing", "product", "product, four panels"):
        assert judged(work, 9.0) == []


def test_floors_count_triangles_once_and_matrices_twice():
    assert factors.floor("pack", [2, 3]) == (4 * 9, 4 * 9)
    assert factors.floor("unpack", [2, 3]) == (4 * 9, 4 * 13)
    assert factors.floor("average", [2, 3]) == (2 * 4 * 9, 4 * 13)
    (resnet50, _) = factors.SETS.values()
    assert len(resnet50) == 108
    assert factors.floor("pack", resnet50)[0] == 4 * (62_348_671 + 14_618_356)


def test_the_summary_has_rate_and_verdict():
    row = COPY | {"work": "pack, kernels, graph", "us": [16.0]}
    text = "\n".join(program.summary("factors", factors.judge([COPY, row])))
    assert "0.50 x the bandwidth of a copy (goal: at least 0.85): MISSED" in text
    assert "GB/s read and written" in text
