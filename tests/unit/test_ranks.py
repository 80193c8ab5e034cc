"""The harness itself: programs and ranks that fail, die or hang are named, and nothing is left."""

import os
import select
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from tests.support import meeting
from tests.support.programs import run_program
from tests.support.ranks import RankFailedError, run_ranks

#: It starts another session, as launchers do, and awaits it.
LAUNCHER = """
import subprocess, sys
def wait_for_rank():
    print("started", flush=True)
    subprocess.run([sys.executable, "-c", sys.argv[1]], start_new_session=True)
wait_for_rank()
"""
RANK = """
import threading
running = threading.Event()
def never_set():
    running.set()
    threading.Event().wait()
def wait_in_rank():
    threading.Thread(target=never_set).start()
    running.wait()
    held = open({path!r}, "w")
    threading.Event().wait()
wait_in_rank()
"""


def test_what_hangs_is_killed_and_shows_all_stacks(tmp_path, monkeypatch):
    fifo = tmp_path / "held by the rank"
    os.mkfifo(fifo)
    readers = []

    class Popen(subprocess.Popen):
        def communicate(self, input=None, timeout=None):
            if not readers:  # the limit expires when the rank has opened the other end
                readers.append(fifo.open())
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(AssertionError, match="still running after 300 s") as raised:
        run_program([sys.executable, "-c", LAUNCHER, RANK.format(path=str(fifo))])
    for part in ("started", "in wait_for_rank", "in never_set", "in wait_in_rank"):
        assert part in str(raised.value)
    with readers[0] as reader:
        assert reader.read() == ""  # blocks as long as the rank lives


def test_a_program_that_fails_is_an_error_with_what_it_has_written():
    program = "import sys; print(sys.stdin.read()); print('bad', file=sys.stderr); sys.exit(3)"
    with pytest.raises(AssertionError, match=r"ended with 3\n--- output:\n\n\n--- errors:\nbad"):
        run_program([sys.executable, "-c", program], check=True)


def test_an_interruption_kills_the_program(monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "communicate", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_program(["sleep", "1000"])


def _rank() -> int:
    return int(os.environ["AIACC_RANK"])


def _double(value):
    return _rank(), os.getpid(), 2 * value


def _meet_late(folder):
    """The last rank gives the others a second to show that they wait for it."""
    finished = os.open(folder / "finished", os.O_RDWR)
    if _rank() == 2:
        select.select([finished], [], [], 1.0)
        (folder / "came").touch()
        meeting.meet()
        return  # whoever has returned is not waited for
    meeting.meet()
    os.write(finished, b".")
    assert (folder / "came").exists(), "the last rank has not come"
    meeting.meet()


def test_ranks_meet_with_all_that_have_not_returned(tmp_path):
    os.mkfifo(tmp_path / "finished")
    run_ranks(3, _meet_late, tmp_path)


def test_results_come_in_rank_order_and_no_process_is_left():
    results = run_ranks(3, _double, 21)
    assert [(rank, value) for rank, _, value in results] == [(0, 42), (1, 42), (2, 42)]
    for _, pid, _ in results:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _end_rank_one(how, others_hang=False):
    if _rank() == 1:
        if how == "raise":
            raise KeyError("the cause")
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), how)
    if others_hang:
        threading.Event().wait()
    return "survived"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", "failed:(?s:.*)KeyError: 'the cause'"),
        ("exit", "died: exit code 7"),
        (signal.SIGKILL, "died: signal SIGKILL"),
    ],
)
def test_the_first_rank_that_fails_or_dies_ends_the_others_at_once(how, text):
    # Were it not at once, the text would name rank 0, which hangs.
    with pytest.raises(RankFailedError, match=f"rank 1 of 2 {text}"):
        run_ranks(2, _end_rank_one, how, True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_rank_may_die_or_freeze_on_purpose_and_is_not_left(how):
    assert run_ranks(2, _end_rank_one, how, missing=[1]) == ["survived", None]


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
    program = "from tests.support.programs import missing\ndef test_it(): missing('no plug-in')\n"
    (tmp_path / "test_it.py").write_text(program)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *plugins, f"--rootdir={tmp_path}"]
    done = run_program([*command, tmp_path / "test_it.py"], env={**os.environ, **env})
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no plug-in" in done.stdout
