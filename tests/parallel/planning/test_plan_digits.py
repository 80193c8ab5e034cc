"""examples/plan_digits.py, unchanged."""

from __future__ import annotations

import re

from tests.support.ranks import run_example


def test_the_example_ends_and_learns_the_same_both_ways():
    ended = run_example("python", 1, "plan_digits.py", "--epochs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.findall(r"^with(?:out)? +plan: accuracy ([\d.]+) %", ended.stdout, re.MULTILINE)
    assert len(found) == 2, ended.stdout + ended.stderr
    assert abs(float(found[0]) - float(found[1])) < 2  # percent: six of the 360 images
    assert "bucket 0: " in ended.stdout


def test_what_fails_ends_it():
    ended = run_example("python", 1, "plan_digits.py", "--ranks", "1")
    assert ended.returncode == 1
    assert "one rank has nobody to measure with" in ended.stderr
    assert "ended with status 2" in ended.stderr
