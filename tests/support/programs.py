"""Programs in processes of their own, under one limit that no load of the machine meets.

What a test needs that a machine may lack is `missing`: there the test is skipped, in CI it fails.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a program hangs. Who needs another limit tests the limit itself.
LIMIT_S = 300.0
#: Seconds that a program has to write its stacks once it hangs.
_LAST_WORDS_S = 10.0
#: Set by .ci/run, which builds and installs everything. tests/conftest.py clears the variable.
_IN_CI = os.environ.get("AIACC_CI", "") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test, which needs what is missing; in CI, fail."""
    if _IN_CI:
        pytest.fail(f"{what} (expected here: .ci/run builds and installs it)", pytrace=False)
    pytest.skip(what)


def needs(why_not: str) -> Any:
    """For a module: ``_needed = needs(what is missing)``, "" if nothing is; see `missing`."""

    @pytest.fixture(autouse=True)
    def needed() -> None:
        if why_not:
            missing(why_not)

    return needed


def run_program(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ROOT,
    check: bool = False,
    input: str | None = None,
    merged: bool = False,
    limit_s: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a session of its own, and capture what it writes.

    Args:
        command: Program and arguments.
        env: The whole environment; this process's own if None. Python's faulthandler is added.
        cwd: Where it runs.
        check: Whether an exit status other than 0 is an error.
        input: Text for standard input, which is empty otherwise.
        merged: Standard error is put behind standard output. In one pipe a rank's lines would break
            the traceback of another, which Python writes in pieces.
        limit_s: Seconds until it counts as hanging.

    Raises:
        AssertionError: It failed, and ``check`` is set; or it hangs. The text has the command and
            what it has written. What hangs is killed with all that it has started, after all of
            that wrote the stacks of its threads, as far as it is Python.
    """
    environment = {"PYTHONFAULTHANDLER": "1", **(os.environ if env is None else env)}
    with subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            written = process.communicate(input, limit_s)
        except subprocess.TimeoutExpired:
            written = _last_words(process)
            raise AssertionError(
                _told(command, f"hangs: still running after {limit_s:g} s", written)
            ) from None
        except BaseException:  # of pytest, for example, whose own limit has expired
            _signal(_family(process.pid), signal.SIGKILL)
            raise
    output, errors = written
    if merged:
        output, errors = output + errors, ""
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check and done.returncode != 0:
        raise AssertionError(_told(command, f"ended with {done.returncode}", written))
    return done


def _told(
    command: Sequence[str | os.PathLike[str]], what: str, written: tuple[str | None, str | None]
) -> str:
    named = zip(("output", "errors"), written, strict=True)
    texts = [f"--- {name}:\n{text}" for name, text in named if text]
    return "\n".join([f"{shlex.join(map(os.fspath, command))}\n{what}", *texts])


def _last_words(process: subprocess.Popen[str]) -> tuple[str | None, str | None]:
    """Let everything that runs tell its stacks, kill it, and return what was written."""
    family = _family(process.pid)
    # All are stopped until each has the signal, or one would see another's end and go on; and one
    # goes on after the other, for they may share what they write to.
    for number in (signal.SIGSTOP, signal.SIGABRT):
        _signal(family, number)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            _signal([pid], signal.SIGCONT)
            select.select([ended], [], [], _LAST_WORDS_S)
            os.close(ended)
    _signal([*family, *_family(process.pid)], signal.SIGKILL)
    try:
        return process.communicate(timeout=_LAST_WORDS_S)
    except subprocess.TimeoutExpired as expired:  # somebody has left the family with our pipes
        return (_text(expired.stdout), _text(expired.stderr))


def _text(written: str | bytes | None) -> str | None:
    return written.decode(errors="replace") if isinstance(written, bytes) else written


def _family(leader: int) -> list[int]:
    """The process, all below it, and all of its session, in the order of their numbers."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = (int(state[1]), int(state[3]))
    family = {pid for pid, (_, session) in parents.items() if session == leader}
    while more := {pid for pid, (parent, _) in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
