"""Two jobs with one AIACC_ADDR: they wait for each other or say so, and never mix in silence."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc.exceptions import BootstrapError
from tests.support.ranks import free_port, run_ranks

SHORT_S = "0.5"


def tell(path):
    """Let go on whoever waits at ``path``, a named pipe."""
    os.close(os.open(path, os.O_WRONLY))


def wait_for(path):
    Path(path).read_bytes()


def pipes(folder, *names):
    for name in names:
        os.mkfifo(folder / name)
    return str(folder)


def join(job, rank, port, **changes):
    os.environ.update(
        AIACC_RANK=str(rank), AIACC_SIZE="2", AIACC_ADDR=f"127.0.0.1:{port}", **changes
    )
    aiacc.init()
    everyone = hvd.allgather(np.array([job]), name="jobs").tolist()
    assert everyone == [job, job], "two jobs are mixed"


def second_job_while_the_first_lives(port, folder):
    """Ranks 0 and 1 are a job, rank 2 is rank 0 of another; text of its error."""
    number = int(os.environ["AIACC_RANK"])
    if number < 2:
        join(0, number, port)
        if number == 0:
            tell(f"{folder}/up")
            wait_for(f"{folder}/refused")
        total = hvd.allreduce(np.ones(3), op=hvd.Sum, name="unharmed")
        aiacc.shutdown()
        return (os.getpid(), total.tolist())
    wait_for(f"{folder}/up")
    with pytest.raises(BootstrapError) as raised:
        join(1, 0, port)
    tell(f"{folder}/refused")
    return str(raised.value)


def test_a_second_job_is_refused_while_the_first_lives_which_goes_on(tmp_path):
    folder, port = pipes(tmp_path, "up", "refused"), free_port()
    first, other, text = run_ranks(3, second_job_while_the_first_lives, port, folder)
    assert first[1] == other[1] == [2.0] * 3
    assert f"process {first[0]} (" in text
    assert f"is rank 0 of a running job at 127.0.0.1:{port}" in text
    assert "AIACC_TOKEN of its own" in text


def rank_too_many(port, folder):
    """Ranks 0 and 1 are a job, rank 2 came as rank 1 of it, too late."""
    number = int(os.environ["AIACC_RANK"])
    if number < 2:
        join(0, number, port)
        if number == 0:
            tell(f"{folder}/up")
            wait_for(f"{folder}/refused")
        aiacc.shutdown()
        return ""
    wait_for(f"{folder}/up")
    with pytest.raises(BootstrapError) as raised:
        join(1, 1, port, AIACC_CONNECT_TIMEOUT_S=SHORT_S)
    tell(f"{folder}/refused")
    return str(raised.value)


def test_a_rank_that_finds_its_job_complete_is_told(tmp_path):
    folder = pipes(tmp_path, "up", "refused")
    *_, text = run_ranks(3, rank_too_many, free_port(), folder)
    assert "A job that has gathered its ranks there runs on this host" in text
    assert "somebody else came as rank 1" in text


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


def test_a_new_rank_0_waits_for_the_one_before_it_to_leave(tmp_path):
    folder = pipes(tmp_path, "up", "up too", "begins", "done")
    run_ranks(4, one_after_the_other, free_port(), folder, "")


def test_tokens_tell_jobs_apart_that_live_at_once(tmp_path):
    folder = pipes(tmp_path, "up", "up too", "begins", "done")
    run_ranks(4, one_after_the_other, free_port(), folder, "of the second")


def several_times(port):
    for _ in range(3):
        join(0, int(os.environ["AIACC_RANK"]), port)
        aiacc.shutdown()


def test_a_job_has_its_own_seat_again_and_again():
    run_ranks(2, several_times, free_port())


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
