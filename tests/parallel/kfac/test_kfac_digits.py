"""examples/kfac_digits.py, unchanged."""

from __future__ import annotations

import re

import pytest

from tests.support.ranks import run_example

SUMMARY = re.compile(
    r"^(K-FAC|Adam): test loss ([\d.]+) after 160 steps in [\d.]+ s on (\d) rank\(s\)$",
    re.MULTILINE,
)
#: Of the mean image: what a model has learned that stays at the first plateau.
PLATEAU = 26.8


# Seconds on an idle machine, and more than 110 with 18 others at work on two cores.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("launcher", "size"), [("python", 1), ("aiaccrun", 2)])
def test_second_order_steps_leave_the_plateau_first(launcher, size):
    ended = run_example(launcher, size, "kfac_digits.py", "--steps", "160")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {name: (float(loss), int(ranks)) for name, loss, ranks in SUMMARY.findall(ended.stdout)}
    assert found.keys() == {"K-FAC", "Adam"}, ended.stdout + ended.stderr
    assert {ranks for _, ranks in found.values()} == {size}
    assert found["K-FAC"][0] < PLATEAU - 3
    assert found["K-FAC"][0] < found["Adam"][0] < PLATEAU + 1
    # The report names the owners of the factors that have one.
    summary = f"K-FAC spd by cholesky on {size} rank(s): 160 steps, factors in 80, inverses in 16"
    assert summary in ended.stdout
    assert re.search(rf"rank {size - 1} inverts \d+", ended.stdout)
