"""examples/plan_digits.py, unchanged."""

from __future__ import annotations

import re

from tests.support.ranks import run_example


def test_the_example_ends_and_learns_the_same_in_all_ways():
    ended = run_example("python", 1, "plan_digits.py", "--epochs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.findall(
        r"^(?:no plan|the plan|plan='auto') *: accuracy ([\d.]+) %", ended.stdout, re.MULTILINE
    )
    assert len(found) == 3, ended.stdout + ended.stderr
    accuracies = [float(accuracy) for accuracy in found]
    assert max(accuracies) - min(accuracies) < 2  # percent: six of the 360 images
    assert "bucket 0: " in ended.stdout
    assert "Images/s do not compare" in ended.stdout


def test_what_fails_ends_it():
    ended = run_example("python", 1, "plan_digits.py", "--ranks", "1", check=False)
    assert ended.returncode == 1
    assert "one rank has nobody to measure with" in ended.stderr
    assert "ended with status 2" in ended.stderr
