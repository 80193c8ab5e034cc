"""Two jobs with one AIACC_ADDR: they wait for each other or say so, and never mix in silence."""

import os
import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc.exceptions import BootstrapError
from tests.parallel.launch.helpers import pipes, tell, wait_for
from tests.support.programs import run_program
from tests.support.ranks import free_port, rank_environment, run_ranks


def join(job, rank, port, **changes):
    os.environ.update(
        AIACC_RANK=str(rank), AIACC_SIZE="2", AIACC_ADDR=f"127.0.0.1:{port}", **changes
    )
    aiacc.init()
    everyone = hvd.allgather(np.array([job]), name="jobs").tolist()
    assert everyone == [job, job], "two jobs are mixed"


def come_late(port, folder, rank):
    """Ranks 0 and 1 are a job, rank 2 comes later as ``rank`` of another; text of its error."""
    number = int(os.environ["AIACC_RANK"])
    if number == 2:
        wait_for(f"{folder}/up")
        with pytest.raises(BootstrapError) as raised:
            join(1, rank, port, AIACC_CONNECT_TIMEOUT_S="0.5")
        tell(f"{folder}/refused")
        return str(raised.value)
    join(0, number, port)
    if number == 0:
        tell(f"{folder}/up")
        wait_for(f"{folder}/refused")
    assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="unharmed").tolist() == [2.0] * 3
    aiacc.shutdown()
    return os.getpid()


@pytest.mark.parametrize(
    ("rank", "text"),
    [
        (0, "process {} .*is rank 0 of a running job at 127.0.0.1:{}(?s:.*)AIACC_TOKEN of its own"),
        (1, "A job that has gathered its ranks there runs on this host"),
        (1, "somebody else came as rank 1"),
    ],
)
def test_who_finds_a_job_complete_is_told_and_the_job_goes_on(tmp_path, port, rank, text):
    folder = pipes(tmp_path, "up", "refused")
    pid, _, said = run_ranks(3, come_late, port, folder, rank)
    assert re.search(text.format(pid, port), said)


def one_after_the_other(port, folder, token):
    """Ranks 0 and 1 are a job, ranks 2 and 3 another that begins while the first lives."""
    number = int(os.environ["AIACC_RANK"])
    if not token:  # all have been in a job, so that they may now be other ranks than there
        os.environ.update(AIACC_RANK="0", AIACC_SIZE="1")
        aiacc.init()
        aiacc.shutdown()
    job, rank = divmod(number, 2)
    if job == 0:
        join(job, rank, port)
        if rank == 0:
            tell(f"{folder}/up")
            tell(f"{folder}/up too")
            wait_for(f"{folder}/{'done' if token else 'begins'}")
    elif rank == 0:
        wait_for(f"{folder}/up")
        if not token:
            tell(f"{folder}/begins")
        join(job, rank, port, AIACC_TOKEN=token)
        if token:
            tell(f"{folder}/done")
    else:
        wait_for(f"{folder}/up too")  # earlier it would be one rank 1 too many for the first job
        join(job, rank, port, AIACC_TOKEN=token)
    aiacc.shutdown()


@pytest.mark.parametrize("token", ["", "of the second"], ids=["waits for the first", "has a token"])
def test_a_second_job_at_the_address_of_the_first(tmp_path, token):
    folder = pipes(tmp_path, "up", "up too", "begins", "done")
    run_ranks(4, one_after_the_other, free_port(), folder, token)


def texts_at_init(port, token):
    number = int(os.environ["AIACC_RANK"])
    sys.argv = [f"/somewhere/{'train' if number == 0 else 'other'}.py"]
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        join(0, number, port, AIACC_TOKEN=token)
    aiacc.shutdown()
    return [str(warning.message) for warning in record]


def test_ranks_of_different_scripts_without_a_token_are_mentioned():
    (text,), (other,) = run_ranks(2, texts_at_init, free_port(), "")
    assert "rank 0 runs train.py, rank 1 other.py" in text
    assert "AIACC_TOKEN" in text
    assert other == text, "both jobs are told"
    assert run_ranks(2, texts_at_init, free_port(), "secret") == [[], []]


# --- started at once: nothing says who comes first

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


def test_a_single_job_waits_for_nobody_and_jobs_with_tokens_never_compute_together():
    assert run_together((0, 0), (0, 1)) == [("computed [0, 0]\n", "")] * 2
    (first, _), (other, _), (zero, _) = run_together((0, 1), (1, 1), (0, 0), token="of")
    assert first == zero == "computed [0, 0]\n"
    assert other.startswith("BootstrapError")
