"""Real processes, small ones: what the ranks see, and what is left of them."""

import errno
import fcntl
import io
import os
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
from contextlib import ExitStack, suppress
from functools import partial
from unittest.mock import Mock

import pytest

from aiacc.run.cause import Ending, exit_code, first_cause, left_before, named_ranks
from aiacc.run.command import Launch, local_environment
from aiacc.run.local import free_port, run_local
from aiacc.run.output import Output, is_consequence
from tests.support.programs import run_program
from tests.unit.run.jobs import aiaccrun, line_of, wait_until_gone

FOREVER = "import signal; signal.pause()"


def run(ranks, program, **options):
    command = (sys.executable, "-c", program)
    launch = Launch(ranks, command)
    base = {"PATH": "/usr/bin:/bin"}
    return run_local(
        ranks,
        command,
        lambda rank, address, token: {**base, **local_environment(rank, launch, address, token)},
        **options,
    )


@pytest.mark.parametrize(
    ("text", "lowest", "end"),
    [
        ("20000\t60999\n", 10000, 20000),  # what the kernel gives to nobody
        *((text, 1024, 1 << 16) for text in (None, "", "1024 65535\n", "10010 60999\n")),
    ],
)
def test_rank_0_has_a_port_that_the_kernel_gives_to_nobody_else_any(tmp_path, text, lowest, end):
    chosen = tmp_path / "range"
    if text is not None:
        chosen.write_text(text)
    for _ in range(50):
        with socket.create_server(("127.0.0.1", free_port(chosen))) as listener:
            assert lowest <= listener.getsockname()[1] < end


def test_rank_0_has_a_port_that_is_free(tmp_path):
    chosen = tmp_path / "range"
    chosen.write_text("10100 60999")
    with ExitStack() as taken:
        for port in range(10000, 10099):
            with suppress(OSError):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
        assert free_port(chosen) not in range(10000, 10099)


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [("sys.exit(3)", 3, "exit code 3"), ("os.kill(os.getpid(), 9)", 137, "signal SIGKILL")],
)
def test_first_failing_rank_decides_and_is_named(capfd, end, code, how):
    program = f"import os, signal, sys\nif os.environ['AIACC_RANK'] == '1': {end}\n{FOREVER}"
    assert run(3, program) == code
    said = capfd.readouterr().err
    assert said.startswith("aiaccrun: rank 1 (pid ")
    assert said.endswith(f"ended with {how}; ending the other 2\n")
    assert said.count("\n") == 1


def test_what_a_script_says_when_it_exits_is_repeated(capfd):
    assert run(1, "import sys; sys.exit('no data found')") == 1
    last = "aiaccrun: rank 0 failed first, with exit code 1; its last line was: no data found"
    assert capfd.readouterr().err.splitlines()[-1] == last


def test_what_ranks_started_is_not_left_behind(tmp_path):
    program = (
        "import subprocess, sys, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(child.pid))"
    )
    assert run(1, program) == 0
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_program_that_cannot_be_started_and_a_launcher_without_descriptors(capfd, monkeypatch):
    assert run_local(2, ("/nowhere/program",), lambda *_: {}) == 127
    assert "rank 0 could not be started" in capfd.readouterr().err
    for number, remedy in ((errno.EMFILE, "open files (ulimit -n)"), (errno.EAGAIN, "processes (")):
        full = Mock(side_effect=OSError(number, "Too many"))
        monkeypatch.setattr(subprocess, "Popen", full)
        assert run_local(2, ("program",), lambda *_: {}) == 126
        assert f"Too many; raise the limit of {remedy}" in capfd.readouterr().err


@pytest.mark.parametrize(("code", "how"), [(143, "SIGTERM received; all 2"), (3, "exit code 3")])
def test_no_rank_is_started_after_a_signal_or_a_failure(capfd, code, how):
    asked = []

    def environment(rank, *_):
        asked.append(rank)
        if rank == 1 and code == 3:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        elif rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"FIRST": str(rank == 0)}

    program = f"import os\nif {code} == 3 and os.environ['FIRST'] == 'True': os._exit(3)\n{FOREVER}"
    assert run_local(99999, (sys.executable, "-c", program), environment) == code
    said = capfd.readouterr().err
    assert asked == [0, 1]
    assert how in said
    assert "ranks 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 99987 more will not be started" in said


PRINT_PID = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_go_on_to_the_ranks(number, code):
    with aiaccrun(2, PRINT_PID) as job:
        ranks = [os.pidfd_open(int(job.stdout.readline())) for _ in range(2)]
        job.send_signal(number)
        job.communicate()
        over = select.select(ranks, [], [], 0)[0]
    assert job.returncode == code
    assert over == ranks
    for rank in ranks:
        os.close(rank)


TAKES_THREE = """
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "60"])
signal.pthread_sigmask(signal.SIG_BLOCK, numbers := {10, 12, 3})
print("ready", flush=True)
for _ in numbers: print(int(signal.sigwait(numbers)), flush=True)
sys.exit(child.poll() is not None)
"""


def test_a_signal_that_asks_for_no_end_reaches_ranks_and_not_what_they_started():
    heeds = partial(signal.signal, signal.SIGQUIT, signal.SIG_DFL)  # jobs of shells ignore it
    with aiaccrun(2, TAKES_THREE, text=True, preexec_fn=heeds) as job:
        for number in ("ready", 10, 12, 3):  # SIGUSR1, SIGUSR2, SIGQUIT
            if number != "ready":
                job.send_signal(number)
            assert [job.stdout.readline() for _ in range(2)] == [f"{number}\n"] * 2
        assert (job.communicate(), job.returncode) == (("", ""), 0)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signals_that_the_launcher_is_to_ignore_are_ignored_by_the_job(number):
    # nohup's, for one; a read of stdin, which ends with the pipe, is where rank 0 waits.
    program = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); print('lived')"
    ignores = partial(signal.signal, number, signal.SIG_IGN)
    with aiaccrun(1, program, stdin=subprocess.PIPE, preexec_fn=ignores) as job:
        rank = int(job.stdout.readline())
        os.kill(rank, number)
        job.send_signal(number)
        out, err = job.communicate()
    assert (job.returncode, out, err) == (0, b"lived\n", b"")


def test_an_inherited_ignored_sigchld_hides_no_exit_code():
    program = "import subprocess, sys; sys.exit(2 + subprocess.call(['false']))"
    ignores = partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
    with aiaccrun(2, program, preexec_fn=ignores) as job:
        assert b"ended with exit code 3" in job.communicate()[1]
    assert job.returncode == 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_job_runs_where_descriptors_are_closed(closed, tmp_path):
    program = (
        "import os, sys, aiacc, aiacc.array as hvd\n"
        "aiacc.init(); hvd.barrier()\n"
        "print('out', flush=True); print('err', file=sys.stderr)\n"
        "open(os.environ['HERE'] + f'/{aiacc.rank()}', 'w').close()"
    )
    line = f"exec {shlex.join(line_of(2, program))} {closed}"
    done = run_program(["bash", "-c", line], env={**os.environ, "HERE": str(tmp_path)}, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    assert done.stdout == ("" if " >&-" in f" {closed}" else "out\nout\n")
    assert done.stderr == ("" if "2>&-" in closed else "err\nerr\n")


def test_ranks_die_with_a_killed_launcher():
    with aiaccrun(2, PRINT_PID) as job:
        pids = [int(job.stdout.readline()) for _ in range(2)]
        job.kill()
        job.communicate()
    wait_until_gone(*pids)


def test_tagged_output_and_exit_code():
    program = (
        "import os, sys; r = os.environ['AIACC_RANK']\n"
        "print('out', r); print('half', r, end=''); print('err', r, file=sys.stderr)"
    )
    done = run_program(line_of(2, program, "--tag-output"), check=True)
    assert sorted(done.stdout.splitlines()) == [
        "[1,0]<stdout>:half 0",
        "[1,0]<stdout>:out 0",
        "[1,1]<stdout>:half 1",
        "[1,1]<stdout>:out 1",
    ]
    assert sorted(done.stderr.splitlines()) == ["[1,0]<stderr>:err 0", "[1,1]<stderr>:err 1"]


WAITS = "import time\ndef wait(): print('ready', flush=True); time.sleep(60)\n"
IN_TRY = WAITS + "try:\n    wait()\nfinally:\n    raise "


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (f"{WAITS}wait()", ""),
        (f"{IN_TRY}KeyboardInterrupt", ""),
        (f"{IN_TRY}ValueError('no space left')", "ValueError: no space left"),
    ],
)
def test_an_interrupt_is_one_line_beside_what_goes_wrong_meanwhile(program, error):
    with aiaccrun(3, program, text=True) as job:
        for _ in range(3):
            assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGINT)
        out, err = job.communicate()
    assert (job.returncode, out) == (130, "")
    assert err.endswith("aiaccrun: SIGINT received; all 3 ranks have ended\n")
    assert (err.count("\n") > 1) == bool(error)
    assert error in err
    assert ("During handling of the above exception" in err) == bool(error)


LEAVES = """
import os, sys, numpy as np, aiacc, aiacc.array as hvd
aiacc.init()
if aiacc.rank() == 1: {end}
while True: hvd.allreduce(np.ones(3), name="x")
"""
OFTEN = [3, pytest.param(50, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("times", OFTEN)
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(0)", 1, "rank 0 .*ShutdownError: .*; rank 1 had ended before, with exit code 0"),
        ("sys.exit(3)", 3, "rank 1 .*with exit code 3"),
        ("raise ValueError('boom')", 1, "rank 1 failed first, with exit code 1: ValueError: boom$"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 .*with signal SIGKILL"),
    ],
)
def test_the_rank_that_the_others_name_decides(end, code, said, times):
    """Whoever's process ends first: a rank tells the others of its end before."""
    for _ in range(times):
        done = run_program(line_of(2, LEAVES.format(end=end)))
        assert done.returncode == code, done.stderr
        assert re.match(said, done.stderr.rpartition("aiaccrun: ")[2]), done.stderr


NAMES_1 = "ShutdownError: [core] rank 1's script has ended; call"


def test_a_rank_that_is_named_and_does_not_end_is_asked_to(capfd):
    program = (
        f"import os, sys\nif os.environ['AIACC_RANK'] == '0': sys.exit({NAMES_1!r})\n{FOREVER}"
    )
    assert run(2, program, grace_s=0.1) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[1].endswith(
        "ended with exit code 1, for it lost rank 1; waiting for the end of that"
    )
    assert said[2] == f"aiaccrun: rank 0 failed first, with exit code 1: {NAMES_1}"


def test_files_have_the_cause_too(tmp_path, capfd):
    program = "import os\nif os.environ['AIACC_RANK'] == '1': raise ValueError('boom')"
    assert run(2, program, output_folder=tmp_path) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[-1] == "aiaccrun: rank 1 failed first, with exit code 1: ValueError: boom"


ON_A_TERMINAL = """
import os, sys
rank = os.environ["AIACC_RANK"]
if rank == "0":
    sys.stdout.write(f"\\r[##..] tty {sys.stdout.isatty()} {os.get_terminal_size(1).columns}")
    sys.stdout.flush()
open(sys.argv[1] + rank).close()
if rank == "0":
    print("\\r[####] done")
else:
    print("a line of rank 1", sys.stdout.isatty(), flush=True)
"""


def test_on_a_terminal_rank_0_draws_its_bar_below_the_lines_of_others(tmp_path):
    # Nothing orders a rank's terminal and another's pipe: each waits until the other's has come.
    go = [tmp_path / f"go{rank}" for rank in range(2)]
    for pipe in go:
        os.mkfifo(pipe)
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 77, 0, 0))
    program = ON_A_TERMINAL.replace("sys.argv[1]", repr(str(tmp_path / "go")))
    bar = b"\r[##..] tty True 77"
    redrawn = b"\r\033[Ka line of rank 1 False\r\n" + bar.strip()
    with aiaccrun(2, program, stdout=slave, stderr=slave) as job:
        os.close(slave)
        try:
            assert _read(master, len(bar)) == bar
            go[1].write_text("")
            assert _read(master, len(redrawn)) == redrawn
            go[0].write_text("")
            assert _read(master) == b"\r[####] done\r\n"
            assert job.wait() == 0
        finally:
            job.kill()
            os.close(master)


def _read(terminal, count=1 << 20):
    """So many bytes, or what there is until the end."""
    seen = b""
    with suppress(OSError):  # the end, on a terminal
        while len(seen) < count:
            seen += os.read(terminal, count - len(seen))
    return seen


def endings(*each):
    """Of ranks: (exit code, whether it was asked to end, last words)."""
    return [Ending(rank, code, "", *how) for rank, (code, *how) in enumerate(each)]


_LEFT = "aiacc.exceptions.ShutdownError: rank 1 has shut down"
_LOST = "aiacc.exceptions.PeerLostError: lost rank 1"
_LOST_12 = "aiacc.exceptions.PeerLostError: [tcp] lost rank 12 on lane 1: it closed"
_IN_A_GRAPH = f"tensorflow.errors_impl.AbortedError: Graph: {NAMES_1.partition(': ')[2]}"


@pytest.mark.parametrize(
    ("ended", "rank", "code", "named"),
    [
        ([], None, 0, set()),
        ([(0, False, _LEFT)], None, 0, set()),
        ([(2, False, "ValueError: a"), (1, True, "OSError: b")], 0, 2, set()),
        ([(1, False, "ValueError: rank 3 has no data")], 0, 1, set()),
        ([(1, False, "KeyboardInterrupt")], 0, 1, set()),
        ([(1, False, _LOST_12)], 0, 1, {12}),
        ([(1, False, _IN_A_GRAPH), (0, False, "")], 0, 1, {1}),
        # A rank that is told of a failure may end before the one that failed.
        ([(1, False, _LEFT), (3, False, "")], 1, 3, {1}),
        # What this job did to a rank is no exit code of it.
        ([(1, False, _LEFT), (128 + signal.SIGTERM, True, "ValueError: boom")], 1, 1, {1}),
        # One that was killed leaves no words.
        ([(1, False, _LOST), (128 + signal.SIGKILL, False, "")], 1, 137, {1}),
        # Killed because it did not end when it was asked.
        ([(1, False, _LEFT), (128 + signal.SIGKILL, True, "")], 0, 1, {1}),
        ([(1, False, _LEFT), (128 + signal.SIGINT, False, "KeyboardInterrupt")], 1, 130, {1}),
    ],
)
def test_which_rank_is_the_cause_whose_exit_code_is_the_job_s(ended, rank, code, named):
    ended = endings(*ended)
    found = first_cause(ended)
    assert (found.rank if found else None, exit_code(ended)) == (rank, code)
    assert named_ranks(ended) == named


_GROUPED = """KeyError: 1

The above exception was the direct cause of the following exception:

  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 2, in <module>
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    | more: of it
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in f
    | KeyError: 1
    +------------------------------------
bye
"""
_FRAMES = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("2024-11-29 I port.cc:153] oneDNN ... round-off errors from different orders\n", ""),
        ("E external/xla/cuda_platform.cc:51] failed call: CUDA error: UNKNOWN ERROR (303)\n", ""),
        ("a.py:3: UserWarning: the error: is small\nEpoch 3\ntest error: 0.25\nerror: nan\n", ""),
        (f"{_FRAMES}app.OutOfBudget: no more\nbye\n", "app.OutOfBudget: no more"),
        (f"{_FRAMES}KeyError: 'x'\nexamples: 3\n", "KeyError: 'x'"),
        ('  File "a.py", line 1\n    1 1\n    ^\nSyntaxError: bad\n', "SyntaxError: bad"),
        ("[rank0]: " + f"{_FRAMES}OSError: x\n".replace("\n", "\n[rank0]: "), "OSError: x"),
        ("usage: a.py [-h]\na.py: error: no --x\n", "a.py: error: no --x"),
        ("ERROR:root:no data\nbye\n", "ERROR:root:no data"),
        ("Fatal Python error: Aborted\n\nThread\n", "Fatal Python error: Aborted"),
        ("python: can't open '/a': [Errno 2] None\n", "python: can't open '/a': [Errno 2] None"),
        (_GROUPED, "ExceptionGroup: several (2 sub-exceptions); ValueError: a; KeyError: 1"),
        # A finaliser's error ends nothing.
        (f"{_FRAMES}OSError: x\nException ignored in: <f>\n{_FRAMES}TypeError: y\n", "OSError: x"),
        # What is raised for the loss of a rank is its consequence.
        (
            f"{_FRAMES}{NAMES_1}\n\nDuring handling of the above exception, another exception "
            f"occurred:\n\n{_FRAMES}RuntimeError: step 3\n",
            NAMES_1,
        ),
        (f"{_FRAMES}AError: Graph:\n\n[core] lost rank 1\n", "AError: Graph: [core] lost rank 1"),
    ],
)  # fmt: skip
def test_only_lines_that_tell_an_error_are_the_cause(stderr, words):
    output = Output(io.BytesIO())
    output.write(stderr.encode())
    assert output.last_words == words
    assert is_consequence(words) == ("rank 1" in words)


@pytest.mark.parametrize(
    ("codes", "words", "ranks"),
    [([0, 0, 1], _LEFT, [0, 1]), ([1], _LEFT, []), ([0, 1], "OSError: x", []), ([0, 1], "", [])],
)
def test_which_ranks_had_left_before_it(codes, words, ranks):
    ended = endings(*((code, False, words if code else "") for code in codes))
    assert [one.rank for one in left_before(ended, first_cause(ended))] == ranks


def printed(pieces, *tag):
    """What is written of an output that comes in these pieces."""
    sink = io.BytesIO()
    output = Output(sink, *tag)
    for piece in pieces:
        output.write(piece)
        assert not tag or sink.getvalue()[-1:] in (b"", b"\n", b"\r"), "a line is split"
    output.close()
    return sink.getvalue()


def test_a_line_may_be_long_and_come_in_small_pieces():
    """Quadratic costs would take hours here."""
    text = printed([*[b"x" * (1 << 12)] * (1 << 8), *[b"."] * 100_000, b"\n"])
    assert text == b"x" * (1 << 20) + b"." * 100_000 + b"\n"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"a\r", b"\nb\r", b"c\r"], b"T:a\r\nT:b\rT:c\r\n"),
        ([b"a\r\n", b"b", b"\r", b"c", b"\r"], b"T:a\r\nT:b\rT:c\r\n"),
        ([b"on", b"e\ntw", b"o\r", b"\nthree\r", b"4"], b"T:one\nT:two\r\nT:three\rT:4\n"),
    ],
)
def test_lines_and_carriage_returns_at_the_ends_of_pieces(pieces, text):
    assert printed(pieces, "T:") == text


def test_nothing_is_lost_where_stdout_does_not_block():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    job = aiaccrun(1, "for n in range(1, 100_001): print(n)", stdout=writer, stderr=None)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        seen = lines.read().split()
    assert job.wait() == 0
    assert seen == [str(number).encode() for number in range(1, 100_001)]
