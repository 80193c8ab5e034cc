"""aiaccrun where nobody reads what it prints, as in a paused `aiaccrun ... | less`."""

import os
import selectors
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aiacc.run.streams import Streams
from tests.unit.run.jobs import aiaccrun


@pytest.fixture
def full_pipe():
    """A pipe without room, of lines of dots."""
    reader, writer = os.pipe()
    own = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(own, b"." * 4095 + b"\n")
    os.close(own)
    with os.fdopen(reader, "rb") as lines, os.fdopen(writer, "wb", 0) as end:
        yield lines, end


FIRST_FAILS = """
import os, signal, sys
print("out", flush=True)
if os.environ["AIACC_RANK"] == "0":
    open(sys.argv[1]).close()
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


def test_a_failed_rank_is_seen_and_the_others_are_killed(full_pipe, tmp_path):
    lines, end = full_pipe
    os.mkfifo(tmp_path / "go")
    program = FIRST_FAILS.replace("sys.argv[1]", repr(str(tmp_path / "go")))
    with aiaccrun(2, program, "--grace-s", "0.1", stdout=end) as job:
        end.close()
        said = [job.stderr.readline() for _ in range(2)]  # before anything of stdout is read
        assert b"ended with exit code 3; ending the other 1" in said[0]
        assert b"some ranks ignored the request" in said[1]
        seen = [line for line in lines.read().splitlines() if set(line) != set(b".")]
        assert job.wait() == 3
    assert seen == [b"out", b"out"]


UNTIL_ASKED = """
import os, signal, sys
def end(*_):
    print("asked", file=sys.stderr, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("out", flush=True)
print("ready", file=sys.stderr, flush=True)
while True:
    os.write(1, b"x" * 100 + b"\\n")
"""


def test_signals_reach_the_ranks_and_end_the_job(full_pipe):
    _, end = full_pipe
    with aiaccrun(2, UNTIL_ASKED, stdout=end) as job:
        assert [job.stderr.readline() for _ in range(2)] == [b"ready\n"] * 2
        job.send_signal(signal.SIGTERM)
        assert [job.stderr.readline() for _ in range(2)] == [b"asked\n"] * 2
        assert job.stderr.readline() == b"aiaccrun: SIGTERM received; all 2 ranks have ended\n"
        job.send_signal(signal.SIGTERM)  # ends the wait for a reader
        assert job.stderr.read().startswith(b"aiaccrun: nobody has read the last ")
        assert job.wait() == 128 + signal.SIGTERM


def test_a_signalled_job_waits_for_a_reader_as_long_as_it_is_told(full_pipe):
    _, end = full_pipe
    program = UNTIL_ASKED.replace("signal.signal(signal.SIGTERM, end)", "")
    with aiaccrun(2, program, "--grace-s", "0.1", stdout=end) as job:
        assert [job.stderr.readline() for _ in range(2)] == [b"ready\n"] * 2
        job.send_signal(signal.SIGTERM)
        assert b"aiaccrun: nobody has read the last " in job.stderr.read()
        assert job.wait() == 128 + signal.SIGTERM


def test_a_signal_ends_the_wait_for_a_reader(full_pipe, tmp_path):
    _, end = full_pipe
    go = tmp_path / "go"
    os.mkfifo(go)
    with aiaccrun(1, f"open({str(go)!r}).close(); print('out')", stdout=end) as job:
        # A rank whose process is gone has been waited for: only the reader is missing.
        go.open("w").close()  # waits for the rank
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        while children.read_text():
            os.sched_yield()
        job.send_signal(signal.SIGINT)
        said = job.stderr.read()
        assert job.wait() == 128 + signal.SIGINT
    assert said == b"aiaccrun: nobody has read the last 4 bytes of output; they are lost\n"


def test_a_reader_that_goes_away_while_output_waits(full_pipe):
    lines, end = full_pipe
    with aiaccrun(2, UNTIL_ASKED, stdout=end) as job:
        assert [job.stderr.readline() for _ in range(2)] == [b"ready\n"] * 2
        end.close()
        lines.close()
        said = job.stderr.read().splitlines()
        assert job.wait() == 128 + signal.SIGPIPE
    assert said == [b"asked", b"asked", b"aiaccrun: SIGPIPE received; all 2 ranks have ended"]


BOTH = """
import os
rank = os.environ["AIACC_RANK"].encode()
for number in range(3000):  # each line in two halves, between which ranks take turns
    os.write(1 + number % 2, rank * 50)
    os.sched_yield()
    os.write(1 + number % 2, rank * 50 + b"\\n")
"""


def test_lines_of_both_streams_never_merge_where_they_share_a_pipe(full_pipe):
    lines, end = full_pipe
    with aiaccrun(3, BOTH, stdout=end, stderr=end) as job:
        end.close()
        seen = sorted(line for line in lines.read().splitlines() if set(line) != set(b"."))
        assert job.wait() == 0
    assert seen == [str(rank).encode() * 100 for rank in range(3) for _ in range(3000)]


def test_ranks_wait_for_a_reader_and_nothing_is_lost(full_pipe, monkeypatch):
    lines, end = full_pipe
    monkeypatch.setattr(sys, "stdout", end)
    monkeypatch.setattr(end, "isatty", lambda: False, raising=False)
    with selectors.DefaultSelector() as selector:
        streams = Streams(selector, tag_output=False, folder=None)
        ends = streams.open(0)
        os.set_blocking(ends["stdout"], False)
        number, seen = 0, b""

        def turn(most):
            """The rank prints until it would wait, and what it has printed is passed on."""
            nonlocal number
            with suppress(BlockingIOError):
                while number < most:
                    os.write(ends["stdout"], b"%9d\n" % number)
                    number += 1
            for key, _ in selector.select(0):
                streams.on_ready(key.fd, key.data)

        before = -1
        while number > before:
            before = number
            turn(1 << 30)
        assert 1 << 20 <= streams.waiting() < 2 << 20
        assert not selector.select(0)
        while streams.waiting() or number < 2 * before:
            seen += os.read(lines.fileno(), 1 << 16)
            turn(2 * before)
        for descriptor in ends.values():
            os.close(descriptor)
        streams.take_rest()
        while streams.waiting():
            seen += os.read(lines.fileno(), 1 << 16)
            turn(0)
        streams.close()
    monkeypatch.undo()
    end.close()
    seen += lines.read()
    numbers = [int(line) for line in seen.splitlines() if set(line) != set(b".")]
    assert numbers == list(range(2 * before))
