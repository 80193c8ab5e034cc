"""The table of bench.selection."""

import json

from bench import selection


def test_the_table_compares_tracked_with_the_fastest_of_torchs():
    rows = [
        {"mode": "tracked", "residual": False, "median_ms": 10.0},
        {"mode": "exact", "residual": False, "median_ms": 20.0},
        {"mode": "tracked", "residual": True, "median_ms": 40.0},
        {"mode": "exact", "residual": True, "median_ms": 50.0},
    ]

    def times(threads, ordered, unordered, fed_back):
        found = {"topk_ms": ordered, "topk_unsorted_ms": unordered, "feedback_ms": fed_back}
        return {
            "threads": threads,
            **{name: {"median": ms, "samples": [ms] * 7} for name, ms in found.items()},
        }

    report = {
        "when": "today",
        "machine": {"cpu": "a CPU", "cores": 2, "kernel": "6.1"},
        "versions": {"torch": "2.0"},
        "commit": "0123456789abcdef",
        "load_before": [0.1],
        "load_after": [0.2],
        "ours": {"count": 1000, "k": 10, "steps": 60, "memcpy_ms": 5.0, "rows": rows},
        "torch": [times(1, 700.0, 600.0, 500.0), times(2, 300.0, 400.0, 800.0)],
    }
    lines = selection.table(report).splitlines()
    assert lines[2:4] == [
        "| `mstopk:mode=tracked` | 1 | 10.0 | 40.0 |",
        "| `mstopk:mode=exact` | 1 | 20.0 | 50.0 |",
    ]
    assert "| `torch.topk(x.abs(), k)`, sorted | 2 | 300.0 |  |" in lines
    assert "| `torch.topk(x.abs(), k)`, unsorted | 1 | 600.0 | 500.0 |" in lines
    text = lines[-2]
    assert text.startswith("10 of 1,000 float32. `tracked` is 30 times as fast as the fastest")
    assert "12 times with residuals; a copy of the elements takes 5.0 ms." in text


def test_the_page_has_the_figures_of_the_result_file():
    report = json.loads(selection.RESULT.read_text())
    assert selection.table(report) in selection.PAGE.read_text()
