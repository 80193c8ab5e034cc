"""Two jobs of two ranks with one AIACC_ADDR, started at once: nothing says who comes first."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, free_port, rank_environment

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
TIMEOUT_S = "8"
ORDERS = [
    order
    for order in itertools.permutations([(0, 0), (0, 1), (1, 0), (1, 1)])
    if order[0] == (0, 0) or order[0] == (0, 1)
]


def start(job, rank, port, **changes):
    """One process of a job; ``job`` is its only argument."""
    env = {
        "AIACC_RANK": str(rank),
        "AIACC_SIZE": "2",
        "AIACC_ADDR": f"127.0.0.1:{port}",
        "AIACC_CONNECT_TIMEOUT_S": TIMEOUT_S,
        **changes,
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(job)],
        env=rank_environment(env),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcomes(processes):
    return [process.communicate(timeout=60)[0] for process in processes]


@pytest.mark.parametrize("order", ORDERS[::3])
def test_every_rank_of_both_jobs_gets_an_error(order):
    port = free_port()
    texts = outcomes([start(job, rank, port) for job, rank in order])
    assert all(text.startswith("BootstrapError") for text in texts), texts
    assert any("came twice" in text for text in texts), texts


def test_identical_command_lines_are_told_apart_too():
    port = free_port()
    texts = outcomes([start(0, rank, port) for rank in (0, 1, 0, 1)])
    assert all(text.startswith("BootstrapError") for text in texts), texts


def test_jobs_with_tokens_of_their_own_never_compute_together():
    port = free_port()
    processes = [start(job, 1, port, AIACC_TOKEN=f"of {job}") for job in (0, 1)]
    processes.append(start(0, 0, port, AIACC_TOKEN="of 0"))
    first, other, zero = outcomes(processes)
    assert first == zero == "computed [0, 0]\n"
    assert other.startswith("BootstrapError")


def test_a_single_job_waits_for_nobody():
    port = free_port()
    processes = [start(0, rank, port) for rank in (0, 1)]
    found = [process.communicate(timeout=60) for process in processes]
    assert found == [("computed [0, 0]\n", "")] * 2
