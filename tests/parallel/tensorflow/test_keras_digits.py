"""examples/keras_digits.py, unchanged, under the launchers."""

from __future__ import annotations

import re

import pytest

from tests.support.ranks import run_example

SUMMARY = re.compile(r"test accuracy ([\d.]+)% on (\d) rank\(s\)")


@pytest.mark.parametrize("launcher", ["aiaccrun", "mpirun"])
def test_two_ranks_learn_digits(launcher):
    # All of it once, the start elsewhere.
    options = [] if launcher == "aiaccrun" else ["--epochs", "1"]
    ended = run_example(launcher, 2, "keras_digits.py", "--verbose", "2", *options)
    ((accuracy, ranks),) = SUMMARY.findall(ended.stdout)
    assert ranks == "2"
    if not options:
        assert float(accuracy) >= 98
    epochs = 15 if not options else 1
    assert ended.stdout.count("22/22 - ") == epochs  # of one rank
