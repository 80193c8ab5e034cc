"""Real processes, small ones: what the ranks see, and what is left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiacc.run.command import Launch, local_environment
from aiacc.run.local import run_local
from aiacc.run.output import LineTagger

ROOT = Path(__file__).resolve().parents[2]
FOREVER = "import signal; signal.pause()"


def run(ranks, program, said=None, **options):
    command = (sys.executable, "-c", program)
    launch = Launch(ranks, command)
    base = {"PATH": "/usr/bin:/bin"}
    return run_local(
        ranks,
        command,
        lambda rank, address, token: {**base, **local_environment(rank, launch, address, token)},
        say=(said if said is not None else []).append,
        **options,
    )


def is_running(pid):
    """Whether a process exists and is not a zombie that somebody else has to reap."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_gone(pid):
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_every_rank_knows_its_place(tmp_path):
    program = (
        "import os, pathlib; e = os.environ;"
        f"pathlib.Path({str(tmp_path)!r}, e['AIACC_RANK']).write_text("
        "' '.join((e['AIACC_SIZE'], e['AIACC_LOCAL_RANK'], e['AIACC_ADDR'], e['AIACC_TOKEN'])))"
    )
    assert run(3, program) == 0
    seen = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [words[:2] for words in seen] == [["3", str(rank)] for rank in range(3)]
    assert len({(words[2], words[3]) for words in seen}) == 1
    assert len(seen[0][3]) == 32


def test_first_failing_rank_decides_and_is_named():
    said = []
    program = f"import os, sys\nif os.environ['AIACC_RANK'] == '1': sys.exit(3)\n{FOREVER}"
    assert run(3, program, said) == 3
    assert len(said) == 1
    assert said[0].startswith("rank 1 (pid ")
    assert said[0].endswith("ended with exit code 3; ending the other 2")


def test_death_by_signal_is_128_plus_its_number():
    said = []
    program = (
        "import os, signal\n"
        f"if os.environ['AIACC_RANK'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n{FOREVER}"
    )
    assert run(2, program, said) == 128 + signal.SIGKILL
    assert "ended with signal SIGKILL" in said[0]


def test_rank_that_ignores_the_request_is_killed(tmp_path):
    said = []
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    program = (
        "import os, signal, sys\n"
        "if os.environ['AIACC_RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"    open({str(ready)!r}, 'w').close()\n"
        "    while True: signal.pause()\n"
        f"open({str(ready)!r}).close(); sys.exit(4)"
    )
    assert run(2, program, said, grace_s=0.1) == 4
    assert any("killed" in text for text in said)


def test_what_ranks_started_is_not_left_behind(tmp_path):
    program = (
        "import subprocess, sys, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(child.pid))"
    )
    assert run(1, program) == 0
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_program_that_cannot_be_started():
    said = []
    code = run_local(2, ("/nowhere/program",), lambda *_: {}, say=said.append)
    assert code == 127
    assert "rank 0 could not be started" in said[0]


def aiaccrun(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "aiacc.run", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


PRINT_PID = (
    "import os, signal, sys; sys.stdout.write(str(os.getpid()) + '\\n'); sys.stdout.flush(); "
    "signal.pause()"
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_go_on_to_the_ranks(number, code):
    with aiaccrun("-np", "2", "--", sys.executable, "-c", PRINT_PID) as job:
        pids = [int(job.stdout.readline()) for _ in range(2)]
        job.send_signal(number)
        job.communicate(timeout=60)
    assert job.returncode == code
    assert not any(is_running(pid) for pid in pids)


def test_ranks_die_with_a_killed_launcher():
    with aiaccrun("-np", "2", "--", sys.executable, "-c", PRINT_PID) as job:
        pids = [int(job.stdout.readline()) for _ in range(2)]
        job.kill()
        job.communicate(timeout=60)
    for pid in pids:
        wait_until_gone(pid)


def test_tagged_output_and_exit_code():
    program = (
        "import os, sys; r = os.environ['AIACC_RANK']\n"
        "print('out', r); print('half', r, end=''); print('err', r, file=sys.stderr)"
    )
    with aiaccrun("-np", "2", "--tag-output", sys.executable, "-c", program) as job:
        out, err = job.communicate(timeout=60)
    assert job.returncode == 0
    assert sorted(out.splitlines()) == [
        "[1,0]<stdout>:half 0",
        "[1,0]<stdout>:out 0",
        "[1,1]<stdout>:half 1",
        "[1,1]<stdout>:out 1",
    ]
    assert sorted(err.splitlines()) == ["[1,0]<stderr>:err 0", "[1,1]<stderr>:err 1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-np", "2"], "no command"),
        (["python", "x.py"], "how many ranks"),
        (["-np", "0", "python"], "how many ranks"),
        (["-np", "2", "no-such-program"], "'no-such-program' was not found"),
        (["-np", "2", "-H", "far:2", sys.executable], "use --mpi"),
        (["-np", "3", "-H", "localhost:2", sys.executable], "2 slots"),
        (["-np", "2", "--torchrun", "-H", "far:2", sys.executable], "this machine only"),
    ],
)
def test_wrong_use_is_explained(arguments, text):
    with aiaccrun(*arguments) as job:
        _, err = job.communicate(timeout=60)
    assert job.returncode == 2
    assert text in err
    assert "Traceback" not in err


class Sink:
    def __init__(self):
        self.text = b""

    def write(self, data):
        self.text += data

    def flush(self):
        pass


def test_tagger_never_splits_a_line():
    sink = Sink()
    tagger = LineTagger("T:", sink)
    for chunk in (b"on", b"e\ntw", b"o\r", b"\nthree\r", b"four"):
        tagger.write(chunk)
        assert not sink.text or sink.text.endswith((b"\n", b"\r"))
    tagger.close()
    assert sink.text == b"T:one\nT:two\r\nT:three\rT:four\n"
