"""The verdicts of bench.gpu.codes, which need no GPU."""

import pytest

from bench.gpu import __main__ as program
from bench.gpu import codes

#: A copy of 8 bytes takes 8 us: a microsecond a byte.
COPIES = [
    {"work": "copy", "bytes_read": 4, "bytes_written": 4, "us": [9.0, 8.0, 1.0]},
    {"work": "copy", "bytes_read": 4, "bytes_written": 4, "us": [10.0]},
]
TORCH = {"work": "torch: abs, topk, gather", "bytes_read": 4, "bytes_written": 0, "pairs": 1}


def judged(work, us, read=4, written=0, torch_us=60.0):
    row = {"work": work, "bytes_read": read, "bytes_written": written, "pairs": 1, "us": [us]}
    rows = codes.judge([*COPIES, row, TORCH | {"us": [torch_us]}])
    return [(goal["ratio"], goal["met"]) for goal in rows[2]["goals"]]


@pytest.mark.parametrize(("us", "met"), [(5.0, True), (5.88, True), (6.0, False)])
def test_codes_have_85_percent_of_the_bandwidth_of_a_copy(us, met):
    assert judged("encode int8, feedback", us, 3, 2) == [(5 / us, met)]
    assert judged("decode and add fp8", us, 3, 2) == [(5 / us, met)]


def test_a_tracked_selection_is_near_one_read_and_far_from_torch():
    assert judged("select, tracked, 1 pairs, feedback none", 4.0) == [(1.0, True), (15.0, True)]
    assert judged("select, tracked, 1 pairs, feedback none", 6.0) == [(1.5, False), (10.0, False)]
    assert judged("select, tracked, 1 pairs, feedback none", 5.0, torch_us=75.1) == [
        (1.25, True),
        (pytest.approx(15.02), True),
    ]


def test_feedback_is_measured_by_the_bytes_that_it_needs():
    work = "select, tracked, 1 pairs, feedback moves"
    assert judged(work, 15.0, 8, 4) == [(1.25, True)]
    assert judged(work, 15.1, 8, 4) == [(pytest.approx(1.258, abs=1e-3), False)]


def test_a_cold_selection_may_read_twice_and_a_half():
    assert judged("select, cold, 1 pairs, feedback none", 10.0) == [(2.5, True)]
    assert judged("select, cold, 1 pairs, feedback none", 10.1) == [(2.525, False)]


def test_what_has_no_goal_is_only_told():
    for work in ("select, reference, 1 pairs, feedback none", "copy"):
        assert judged(work, 1.0) == []


def test_the_summary_tells_verdicts():
    rows = codes.judge(
        [*COPIES, {"work": "encode int8", "bytes_read": 4, "bytes_written": 1, "us": [6.25]}]
    )
    lines = program.summary("codes", rows)
    assert lines[-2].startswith("  work encode int8, bytes_read 4, bytes_written 1: 6.25 us")
    assert lines[-1] == "    0.80 x bandwidth of a copy (goal: at least 0.85): MISSED"
