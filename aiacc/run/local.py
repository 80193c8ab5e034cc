"""Runs ranks on this machine: starts them, watches them, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from aiacc.bootstrap.processes import open_pidfd
from aiacc.bootstrap.provider import rank_list
from aiacc.run.cause import Ending, exit_code, first_cause, left_before, named_ranks
from aiacc.run.streams import Streams

#: Makes the environment of one rank: (rank, address, token) to variables.
Environment = Callable[[int, str, str], Mapping[str, str]]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Mean what the ranks make of them: a checkpoint, as before a job is preempted, stacks to print.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_REMEDIES = {
    errno.EAGAIN: "; raise the limit of processes (ulimit -u, or pids.max of the container), or "
    "start fewer ranks",
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE),
        "; raise the limit of open files (ulimit -n), or start fewer ranks",
    ),
}


class Rank:
    """One process of the job, the leader of its own session."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.descriptor = open_pidfd(process.pid)
        self.ended = False
        self.asked = False
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

    def pass_on(self, number: int) -> None:
        """Send a signal to the process alone: workers that it has started would die of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.process.pid, number)

    def close(self) -> None:
        """Kill what is left of the session."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.ended = True
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
    processes, output, room for it and signals.
    """

    def __init__(
        self,
        *,
        signals: socket.socket,
        tag_output: bool,
        output_folder: Path | None,
        grace_s: float,
    ) -> None:
        self._grace_s = grace_s
        self._signals = signals
        self._ranks: list[Rank] = []
        self._ended: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ, signals)
        self._streams = Streams(self._selector, tag_output=tag_output, folder=output_folder)
        self._say = self._streams.say
        #: When what has not ended yet is ended.
        self._deadline: float | None = None
        self._killed = False
        #: Only ranks have failed that name others, which get the time to end by themselves.
        self._waits = False
        self._starting = True
        self._result: int | None = None
        self._announced: int | None = None
        self._interrupted_by = 0

    def start_all(
        self, ranks: int, command: Sequence[str], environment: Callable[[int], Mapping[str, str]]
    ) -> bool:
        """Start the ranks, until one has failed or a signal has come; False as of `start`."""
        for rank in range(ranks):
            self._turn(0)
            if self._result is not None:
                self._say(f"{rank_list(range(rank, ranks))} will not be started")
                break
            if not self.start(rank, command, environment(rank)):
                return False
        self._starting = False
        return True

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Start one rank; False, after saying so, if that is impossible."""
        ends: Mapping[str, int] = {}
        try:
            ends = self._streams.open(rank)
            process = subprocess.Popen(
                command,
                # Lines come when they are printed, not when 8 KiB of them are there.
                env={"PYTHONUNBUFFERED": "1", **environment},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=ends["stdout"],
                stderr=ends["stderr"],
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "")
            self._say(f"rank {rank} could not be started: {error}{remedy}")
            self._result = 127 if isinstance(error, FileNotFoundError) else 126
            return False
        finally:
            for end in ends.values():
                os.close(end)
        started = Rank(rank, process)
        self._ranks.append(started)
        self._selector.register(started.descriptor, selectors.EVENT_READ, started)
        return True

    @property
    def result(self) -> int:
        """The exit code of the job."""
        return self._result or 0

    def wait(self) -> None:
        """Block until every rank has ended."""
        while any(not rank.ended for rank in self._ranks):
            self._turn(None if self._killed else self._seconds_left())
            if self._waits and self._seconds_left() == 0:
                self._end_all(signal.SIGTERM)
            elif not self._killed and self._seconds_left() == 0:
                self._say(f"some ranks ignored the request to end for {self._grace_s:g} s; killed")
                self._signal_all(signal.SIGKILL)
                self._killed = True

    def close(self) -> None:
        """Kill what is left of the ranks and of what they started; print what is left to print.

        Blocks: until it has been read; after a signal, for the time that ranks have to end.
        """
        for rank in self._ranks:
            rank.close()
        self._streams.take_rest()
        self._say_why()
        self._deadline = time.monotonic() + self._grace_s if self._interrupted_by else None
        while self._streams.waiting() and self._seconds_left() != 0:
            self._turn(self._seconds_left())
        if lost := self._streams.waiting():
            self._say(f"nobody has read the last {lost} bytes of output; they are lost")
        self._streams.close()
        self._selector.close()

    def _turn(self, seconds: float | None) -> None:
        """Wait for whatever happens next, and do what is to be done."""
        ended = []
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, Rank):
                ended.append(key.data)
            elif key.data is self._signals:
                self._on_signals(self._signals.recv(64))
            else:
                self._streams.on_ready(key.fd, key.data)
        self._on_ended(ended)
        self._on_failures(self._streams.failures())

    def _say_why(self) -> None:
        """Repeat the cause as the last line: other ranks have had more to say meanwhile."""
        if self._interrupted_by:
            name = signal.Signals(self._interrupted_by).name
            self._say(f"{name} received; all {len(self._ranks)} ranks have ended")
            return
        endings = self._endings()
        cause = first_cause(endings)
        if cause is not None:
            self._result = exit_code(endings)
        words = "" if cause is None else _words_of(cause)
        if cause is not None and (words or cause.rank != self._announced):
            left = [ending.rank for ending in left_before(endings, cause)]
            if left:
                words += f"; {rank_list(left)} had ended before, with exit code 0"
            self._say(f"rank {cause.rank} failed first, with {cause.how}{words}")

    def _endings(self) -> list[Ending]:
        return [
            Ending(
                rank.rank,
                rank.code,
                rank.how_it_ended(),
                rank.asked,
                *self._streams.last_words(rank.rank),
            )
            for rank in self._ended
        ]

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _on_ended(self, ended: list[Rank]) -> None:
        for rank in ended:
            self._selector.unregister(rank.descriptor)
            rank.look()
        # A rank that a signal killed did not fail because of another one.
        ended.sort(key=lambda rank: (rank.killed_by == 0, rank.rank))
        self._ended += ended
        failed = [rank for rank in ended if rank.code != 0]
        if failed and self._result is None:
            first = failed[0]
            self._result = first.code
            self._announced = first.rank
            named = self._named()
            others = sum(not rank.ended for rank in self._ranks)
            next_step = f"; ending the other {others}" if others else ""
            if named:
                next_step = f", for it lost {rank_list(named)}; waiting for the end of that"
            self._streams.end_line()
            self._say(
                f"rank {first.rank} (pid {first.process.pid}) ended with {first.how_it_ended()}"
                + next_step
            )
            self._waits, self._deadline = True, time.monotonic() + self._grace_s
        if self._waits and ended and not self._named():
            self._end_all(signal.SIGTERM)

    def _on_failures(self, failures: Mapping[str, OSError]) -> None:
        """Nobody reads any more, as after `| head`: then the job ends, as any program would."""
        for name, error in failures.items():
            if not isinstance(error, BrokenPipeError):
                self._say(f"{name} cannot be written ({error}); what ranks print there is lost")
            elif self._result is None:
                self._interrupt(signal.SIGPIPE)
                self._end_all(signal.SIGTERM)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in _PASSED_ON:
                for rank in self._ranks:
                    if not rank.ended:
                        rank.pass_on(number)
            if number not in _FORWARDED:
                continue
            if not self._starting and all(
                rank.ended for rank in self._ranks
            ):  # only readers are waited for
                self._result = self._result or 128 + number
                self._deadline = time.monotonic()
                continue
            if self._result is not None and number == signal.SIGINT:
                self._signal_all(signal.SIGKILL)  # asked twice
                continue
            if self._result is None:
                self._interrupt(number)
            self._end_all(number)

    def _interrupt(self, number: int) -> None:
        """From now on a signal is the cause, and ranks that only say so are not heard."""
        self._result = 128 + number
        self._interrupted_by = number
        self._streams.drop_interrupts()

    def _named(self) -> set[int]:
        """Ranks whose end is the cause by what others have said, and that have not ended yet."""
        running = {rank.rank for rank in self._ranks if not rank.ended}
        return named_ranks(self._endings()) & running

    def _end_all(self, number: int) -> None:
        self._signal_all(number)
        if self._deadline is None or self._waits:
            self._deadline = time.monotonic() + self._grace_s
        self._waits = False

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if not rank.ended:
                rank.asked = True
                rank.signal(number)


def _words_of(cause: Ending) -> str:
    """What it said of an error; else, of one that ended itself, as by ``sys.exit(text)``, last."""
    if cause.last_words:
        return f": {cause.last_words}"
    own = cause.last_line and cause.code < 128
    return f"; its last line was: {cause.last_line}" if own else ""


_CHOSEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below are those that services have.
_FIRST_PORT, _TRIES = 10000, 100


def run_local(
    ranks: int,
    command: Sequence[str],
    environment: Environment,
    *,
    tag_output: bool = False,
    output_folder: Path | None = None,
    grace_s: float = 5.0,
) -> int:
    """Run ``command`` as ``ranks`` ranks on this machine.

    The first rank that fails decides the result; the others are asked to end by SIGTERM and killed
    after ``grace_s`` seconds. If its error only says that it has lost another one, that one has as
    long to end by itself before. SIGINT, SIGTERM and SIGHUP go on to the ranks unless this process
    ignores them, a second SIGINT kills them; so do SIGUSR1, SIGUSR2 and SIGQUIT, which end no job
    by themselves. Whatever the ranks started in their sessions is killed at the end.

    With an ``output_folder`` rank N writes to the files ``rank.N/stdout`` and ``stderr`` in it.

    Blocks: until all ranks have ended and what they printed has been read, or a signal has come.

    Returns:
        0 if all succeeded, else the exit code of the first that failed, 128 + n for signal n.
    """
    address, token = f"127.0.0.1:{free_port()}", secrets.token_hex(16)
    with forwarded_signals() as signals:
        job = Job(
            signals=signals, tag_output=tag_output, output_folder=output_folder, grace_s=grace_s
        )
        try:
            if job.start_all(ranks, command, lambda rank: environment(rank, address, token)):
                job.wait()
        finally:
            job.close()
        return job.result


def free_port(chosen: Path = _CHOSEN_BY_KERNEL) -> int:
    """A TCP port of this machine that nobody uses at the moment.

    If it has others, none of those that the kernel gives to whoever asks for any: rank 0 takes the
    port anew with each ``init``, and in between a connection, of the job's own too, could get it.

    Args:
        chosen: The file with the first and the last port that the kernel gives.
    """
    try:
        below = int(chosen.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        below = 0  # no Linux
    own = range(_FIRST_PORT, below)
    tries = [own[secrets.randbelow(len(own))] for _ in range(_TRIES)] if len(own) >= _TRIES else []
    for port in tries:
        with suppress(OSError):
            return _bound(port)
    return _bound(0)


def _bound(port: int) -> int:
    """The port, once it was bound; any for 0. OSError if it is taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])


@contextmanager
def forwarded_signals() -> Iterator[socket.socket]:
    """Turns signals into bytes on a socket, so that the selector sees them."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    old_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    # What is ignored stays so, here and in the ranks: nohup, and a shell in a script for what it
    # starts by "&", mean the whole job.
    numbers = (*_FORWARDED, *_PASSED_ON)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, lambda *_: None) for number in heard}
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
