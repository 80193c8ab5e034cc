"""examples/keras_digits.py, unchanged, under the launchers."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.ranks import ROOT, launch_command, rank_environment

SUMMARY = re.compile(r"test accuracy ([\d.]+)% on (\d) rank\(s\)")


@pytest.mark.parametrize("launcher", ["aiaccrun", "mpirun"])
def test_two_ranks_learn_digits(launcher):
    # All of it once, the start elsewhere.
    options = [] if launcher == "aiaccrun" else ["--epochs", "1"]
    program = ["examples/keras_digits.py", "--verbose", "2", *options]
    env = rank_environment({"TF_CPP_MIN_LOG_LEVEL": "2"})
    env.pop("PYTHONPATH")  # aiacc is installed
    ended = subprocess.run(
        launch_command(launcher, 2, program),
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ((accuracy, ranks),) = SUMMARY.findall(ended.stdout)
    assert ranks == "2"
    if not options:
        assert float(accuracy) >= 98
    epochs = 15 if not options else 1
    assert ended.stdout.count("22/22 - ") == epochs  # of one rank
