"""Runs ranks on this machine: starts them, watches them, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from aiacc.run.output import LineTagger, tag_of

#: Makes the environment of one rank: (rank, address, token) to variables.
Environment = Callable[[int, str, str], Mapping[str, str]]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


class Rank:
    """One process of the job, the leader of its own session."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.descriptor = os.pidfd_open(process.pid)
        self.ended = False
        self.killed_by = 0
        self.code = 0

    def look(self) -> None:
        """Learn how the process ended: ``code`` is 128 + n if signal n killed it.

        It stays a zombie until `close`, so that its number still means its session.
        """
        info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        self.ended = True
        self.killed_by = 0 if info.si_code == os.CLD_EXITED else info.si_status
        self.code = 128 + self.killed_by if self.killed_by else info.si_status

    def signal(self, number: int) -> None:
        """Send a signal to the process and everything that it started in its session."""
        with suppress(ProcessLookupError, PermissionError):  # all of them may have ended
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Kill what is left of the session."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.descriptor)

    def how_it_ended(self) -> str:
        """For a message: "exit code 3", or the name of the signal."""
        return (
            f"signal {signal.Signals(self.killed_by).name}"
            if self.killed_by
            else f"exit code {self.code}"
        )


class Job:
    """The ranks of one job on this machine. Use `run_local`.

    Threads: the main thread only, for signals. Nothing polls: one selector waits for ends of
    processes, output and signals.
    """

    def __init__(
        self,
        *,
        tag_output: bool,
        output_folder: Path | None,
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._tag_output = tag_output and output_folder is None
        self._output_folder = output_folder
        self._grace_s = grace_s
        self._say = say
        self._ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._result: int | None = None

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one rank; OSError if that is impossible."""
        with ExitStack() as files:
            stdout, stderr = (self._output(rank, name, files) for name in ("stdout", "stderr"))
            process = subprocess.Popen(
                command,
                env={**environment, **({"PYTHONUNBUFFERED": "1"} if self._tag_output else {})},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        started = Rank(rank, process)
        self._ranks.append(started)
        self._selector.register(started.descriptor, selectors.EVENT_READ, started)
        for stream, name, sink in (
            (process.stdout, "stdout", sys.stdout.buffer),
            (process.stderr, "stderr", sys.stderr.buffer),
        ):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                tagger = LineTagger(tag_of(rank, name), sink)
                self._selector.register(stream.fileno(), selectors.EVENT_READ, tagger)

    def _output(self, rank: int, name: str, files: ExitStack) -> int | IO[bytes] | None:
        """Where one stream of a rank goes."""
        if self._output_folder is None:
            return subprocess.PIPE if self._tag_output else None
        folder = self._output_folder / f"rank.{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        return files.enter_context((folder / name).open("wb"))

    def wait(self) -> int:
        """Block until every rank has ended; the exit code of the job."""
        with _signals() as wakeup:
            self._selector.register(wakeup, selectors.EVENT_READ, None)
            while any(not rank.ended for rank in self._ranks):
                ended = []
                for key, _ in self._selector.select(self._seconds_left()):
                    if isinstance(key.data, Rank):
                        ended.append(key.data)
                    elif isinstance(key.data, LineTagger):
                        self._pass_on(key.fd, key.data)
                    else:
                        self._on_signals(wakeup.recv(64))
                self._on_ended(ended)
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._say(
                        f"some ranks ignored the request to end for {self._grace_s:g} s; killed"
                    )
                    self._signal_all(signal.SIGKILL)
                    self._kill_at = None
            self._selector.unregister(wakeup)
        return self._result or 0

    def close(self) -> None:
        """Kill what is left of the ranks and of what they started."""
        for rank in self._ranks:
            rank.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, LineTagger):
                self._drain(key.fd, key.data)
        self._selector.close()
        for rank in self._ranks:
            for stream in (rank.process.stdout, rank.process.stderr):
                if stream is not None:
                    stream.close()

    def _seconds_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _on_ended(self, ended: list[Rank]) -> None:
        for rank in ended:
            self._selector.unregister(rank.descriptor)
            rank.look()
        # The first to fail is the cause; a rank that a signal killed did not fail because of
        # another one.
        failed = sorted(
            (rank for rank in ended if rank.code != 0),
            key=lambda rank: (rank.killed_by == 0, rank.rank),
        )
        if failed and self._result is None:
            first = failed[0]
            self._result = first.code
            others = sum(not rank.ended for rank in self._ranks)
            self._say(
                f"rank {first.rank} (pid {first.process.pid}) ended with {first.how_it_ended()}"
                + (f"; ending the other {others}" if others else "")
            )
            self._end_all(signal.SIGTERM)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in _FORWARDED:
                continue
            if self._result is not None and number == signal.SIGINT:
                self._signal_all(signal.SIGKILL)  # asked twice
                continue
            if self._result is None:
                self._result = 128 + number
            self._end_all(number)

    def _end_all(self, number: int) -> None:
        self._signal_all(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if not rank.ended:
                rank.signal(number)

    def _pass_on(self, descriptor: int, tagger: LineTagger) -> bool:
        chunk = os.read(descriptor, 1 << 16)
        if chunk:
            tagger.write(chunk)
            return True
        tagger.close()
        self._selector.unregister(descriptor)
        return False

    def _drain(self, descriptor: int, tagger: LineTagger) -> None:
        try:
            while self._pass_on(descriptor, tagger):
                pass
        except BlockingIOError:
            tagger.close()  # somebody outside the session still holds the pipe


def run_local(
    ranks: int,
    command: Sequence[str],
    environment: Environment,
    *,
    tag_output: bool = False,
    output_folder: Path | None = None,
    grace_s: float = 5.0,
    say: Callable[[str], None],
) -> int:
    """Run ``command`` as ``ranks`` ranks on this machine.

    The first rank that fails decides the result; the others are asked to end by SIGTERM and killed
    after ``grace_s`` seconds. SIGINT, SIGTERM and SIGHUP go on to the ranks, a second SIGINT kills
    them. Whatever the ranks started in their sessions is killed at the end.

    With an ``output_folder`` rank N writes to the files ``rank.N/stdout`` and ``stderr`` in it.

    Blocks: until all ranks have ended.

    Returns:
        0 if all succeeded, else the exit code of the first that failed, 128 + n for signal n.
    """
    address, token = f"127.0.0.1:{free_port()}", secrets.token_hex(16)
    with ExitStack() as stack:
        job = Job(tag_output=tag_output, output_folder=output_folder, grace_s=grace_s, say=say)
        stack.callback(job.close)
        for rank in range(ranks):
            try:
                job.start(rank, command, environment(rank, address, token))
            except OSError as error:
                say(f"rank {rank} could not be started: {error}")
                return 127 if isinstance(error, FileNotFoundError) else 126
        return job.wait()


def free_port() -> int:
    """A TCP port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Turns signals into bytes on a socket, so that the selector sees them."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    old_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    old = {number: signal.signal(number, lambda *_: None) for number in _FORWARDED}
    try:
        yield reader
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wakeup)
        reader.close()
        writer.close()


def _die_with_parent() -> None:
    """In the child: have the kernel kill it if aiaccrun itself is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_LIBC = ctypes.CDLL(None, use_errno=True)
