"""Floors and verdicts of bench.gpu.optim, which need no GPU."""

import pytest

from bench.gpu import __main__ as program
from bench.gpu import optim

#: A microsecond a byte.
COPY = {"set": "", "work": "copy", "bytes_read": 4, "bytes_written": 4, "us": [9.0, 8.0, 1.0]}


def judged(work, us):
    row = {"set": "", "work": work, "bytes_read": 6, "bytes_written": 4, "us": [us]}
    return optim.judge([COPY, row])[1]["goals"]


@pytest.mark.parametrize(("us", "met"), [(9.0, True), (12.0, True), (12.1, False)])
def test_kernels_are_near_the_bytes_that_they_move(us, met):
    (goal,) = judged("LARS, kernels, graph", us)
    assert (goal["ratio"], goal["met"]) == (us / 10, met)


def test_only_kernels_without_python_have_a_goal():
    for work in optim.CONTENDERS:
        assert judged(work, 9.0) == []
    assert judged("LARS, foreach, graph", 9.0) == []
    assert {"LARS, kernels", "LAMB, kernels"} <= set(optim.CONTENDERS)


def test_floors_count_every_pass():
    # Norms read 8 bytes of each element, the update 12, and it writes 8.
    assert optim.floor("LARS", [(3, 2)]) == (6 * 20, 6 * 8)
    assert optim.floor("LARS", [(3, 2), (5,)]) == (6 * 20 + 5 * 12, 11 * 8)
    assert optim.floor("SGD", [(3, 2), (5,)]) == (11 * 12, 11 * 8)
    # Without a ratio LAMB is one pass.
    assert optim.floor("LAMB", [(3, 2), (5,)]) == (6 * 28 + 5 * 16, 11 * 12)
    assert optim.floor("AdamW", [(3, 2)]) == (6 * 16, 6 * 12)


def test_the_summary_has_floor_and_verdict():
    row = COPY | {"work": "LARS, kernels, graph", "us": [16.0]}
    text = "\n".join(program.summary("optim", optim.judge([COPY, row])))
    assert "2.00 x its bytes in a copy (goal: at most 1.2): MISSED" in text
    assert "GB/s read and written" in text
