"""Two jobs of two ranks with one AIACC_ADDR, started at once: nothing says who comes first."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.programs import run_program
from tests.support.ranks import free_port, rank_environment

#: Says "computed" if it gets through, else what it was told.
PROGRAM = """
import sys
import numpy as np
import aiacc, aiacc.array as hvd

try:
    hvd.init()
except aiacc.CollectiveError as error:
    print(type(error).__name__, error)
else:
    print("computed", hvd.allgather(np.array([int(sys.argv[1])]), name="jobs").tolist())
"""


def run_together(*places, token=""):
    """Output of processes (job, rank) that are started in this order; all have one address."""
    port = free_port()

    def run(place):
        job, rank = place
        env = {
            "AIACC_RANK": str(rank),
            "AIACC_SIZE": "2",
            "AIACC_ADDR": f"127.0.0.1:{port}",
            "AIACC_CONNECT_TIMEOUT_S": "8",
            "AIACC_TOKEN": token and f"{token} {job}",
        }
        command = [sys.executable, "-c", PROGRAM, str(job)]
        done = run_program(command, env=rank_environment(env))
        return done.stdout, done.stderr

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(run, places))


@pytest.mark.parametrize(
    "order",
    [
        ((0, 0), (0, 1), (1, 0), (1, 1)),
        ((0, 1), (0, 0), (1, 0), (1, 1)),
        pytest.param(((0, 0), (1, 0), (1, 1), (0, 1)), marks=pytest.mark.nightly),
        pytest.param(((0, 1), (1, 0), (1, 1), (0, 0)), marks=pytest.mark.nightly),
        # Their command lines are the same.
        ((0, 0), (0, 1), (0, 0), (0, 1)),
    ],
)
def test_every_rank_of_both_jobs_gets_an_error(order):
    texts = [text for text, _ in run_together(*order)]
    assert all(text.startswith("BootstrapError") for text in texts), texts
    assert any("came twice" in text for text in texts), texts


def test_jobs_with_tokens_of_their_own_never_compute_together():
    (first, _), (other, _), (zero, _) = run_together((0, 1), (1, 1), (0, 0), token="of")
    assert first == zero == "computed [0, 0]\n"
    assert other.startswith("BootstrapError")


def test_a_single_job_waits_for_nobody():
    assert run_together((0, 0), (0, 1)) == [("computed [0, 0]\n", "")] * 2
