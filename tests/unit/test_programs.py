"""`tests.support.programs`: what hangs shows where, and leaves nothing."""

import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from tests.support.programs import run_program

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
