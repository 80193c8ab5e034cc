"""examples/multi_resolution.py: several sizes of images, on two ranks."""

from __future__ import annotations

import re

from tests.support.ranks import run_example


def test_the_whole_recipe_learns():
    ended = run_example("aiaccrun", 2, "multi_resolution.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (known,) = re.findall(r"test accuracy ([\d.]+)% after [\d.]+ s on 2 rank\(s\)", ended.stdout)
    assert float(known) >= 96
    assert len(re.findall(r"epochs, +\d+ x \d+ +pixels", ended.stdout)) == 4
