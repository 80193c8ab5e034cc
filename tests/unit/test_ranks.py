"""The harness itself: a failing, dying or hanging rank is named, and nothing is left running."""

import os
import signal
import sys
import threading

import pytest

from tests.support.programs import run_program
from tests.support.ranks import RankFailedError, run_ranks


def _rank() -> int:
    return int(os.environ["AIACC_RANK"])


def _double(value):
    return _rank(), os.getpid(), 2 * value


def test_results_come_in_rank_order_and_no_process_is_left():
    results = run_ranks(3, _double, 21)
    assert [(rank, value) for rank, _, value in results] == [(0, 42), (1, 42), (2, 42)]
    for _, pid, _ in results:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _raise_on_rank_one():
    if _rank() == 1:
        raise KeyError("the cause")
    threading.Event().wait()


def test_first_failure_ends_the_others_at_once_with_its_traceback():
    # Were it not at once, the text would name rank 0, which hangs.
    with pytest.raises(RankFailedError, match=r"rank 1 of 2 failed:(?s:.*)KeyError: 'the cause'"):
        run_ranks(2, _raise_on_rank_one)


def _exit_on_rank_one():
    if _rank() == 1:
        os._exit(7)
    threading.Event().wait()


def _kill_rank_one():
    if _rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@pytest.mark.parametrize(
    ("function", "how"), [(_exit_on_rank_one, "exit code 7"), (_kill_rank_one, "signal SIGKILL")]
)
def test_dead_rank_shows_how_it_died(function, how):
    with pytest.raises(RankFailedError, match=f"rank 1 of 2 died: {how}"):
        run_ranks(2, function)


def _stop_rank_one():
    if _rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return "survived"


@pytest.mark.parametrize("function", [_kill_rank_one, _stop_rank_one])
def test_rank_may_die_or_freeze_on_purpose_and_is_not_left(function):
    assert run_ranks(2, function, missing=[1]) == ["survived", None]


def _hang_in_a_named_function():
    if _rank() != 1:
        threading.Event().wait()


def test_hang_names_the_ranks_and_shows_their_stacks():
    with pytest.raises(RankFailedError, match="rank 0, 2") as failure:
        run_ranks(3, _hang_in_a_named_function, timeout=3)
    assert str(failure.value).count("_hang_in_a_named_function") == 2
    assert "--- rank 1" not in str(failure.value)


@pytest.mark.parametrize(("env", "outcome"), [({}, "1 skipped"), ({"AIACC_CI": "1"}, "1 failed")])
def test_a_test_that_misses_something(env, outcome, tmp_path):
    # With the conftest of the tests, which clears the variable.
    program = "from tests.support.needed import missing\ndef test_it(): missing('no plug-in')\n"
    (tmp_path / "test_it.py").write_text(program)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *plugins, f"--rootdir={tmp_path}"]
    done = run_program([*command, tmp_path / "test_it.py"], env={**os.environ, **env})
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no plug-in" in done.stdout
