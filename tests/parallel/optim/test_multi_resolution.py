"""examples/multi_resolution.py: several sizes of images, on two ranks."""

from __future__ import annotations

import re

import aiacc.torch as hvd
from examples import multi_resolution
from tests.support.ranks import run_example, run_ranks


def test_the_whole_recipe_learns():
    ended = run_example("aiaccrun", 2, "multi_resolution.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (known,) = re.findall(r"test accuracy ([\d.]+)% after [\d.]+ s on 2 rank\(s\)", ended.stdout)
    assert float(known) >= 96
    assert len(re.findall(r"epochs, +\d+ x \d+ +pixels", ended.stdout)) == 4


def _short():
    hvd.init()
    recipe = [multi_resolution.Phase(1, pixels, 256) for pixels in (5, 9)]
    known = multi_resolution.train(recipe)
    hvd.shutdown()
    return known


def test_as_on_one_rank():
    (alone,) = run_ranks(1, _short)
    for known in run_ranks(3, _short):  # which divides no batch evenly
        assert abs(known - alone) < 0.02
