"""Carries what local ranks write to the terminal, to pipes or to files."""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import sys
import termios
from pathlib import Path

from aiacc.run.output import Output, tag_of
from aiacc.run.sink import Plain, Screen

_NAMES = ("stdout", "stderr")
#: At least what fits into a pipe.
_LAST_PIECES = 16


class Streams:
    """stdout and stderr of all ranks of a job.

    Ranks write to pipes, from which whole lines are passed on. On a terminal rank 0 has a terminal
    of its own, so that its progress bars are drawn. With a folder, rank N writes to the files
    ``rank.N/stdout`` and ``stderr`` in it.

    Threads: one; the selector tells it when to call `on_ready`. Never blocks: where a reader is
    slow, ranks wait for it, in their own writing.
    """

    def __init__(
        self, selector: selectors.BaseSelector, *, tag_output: bool, folder: Path | None
    ) -> None:
        self._selector = selector
        self._tags = tag_output
        self._folder = folder
        self._sinks = _sinks(selector)
        self._sources: dict[int, tuple[Output, Plain]] = {}
        #: Those of them that the selector watches.
        self._read: set[int] = set()
        self._told: set[str] = set()
        self._outputs: dict[tuple[int, str], Output] = {}

    def open(self, rank: int) -> dict[str, int]:
        """Descriptors that the process of ``rank`` is to write to, by name. The caller closes them.

        Raises:
            OSError: No pipe, terminal or file can be made.
        """
        if self._folder is not None:
            folder = self._folder / f"rank.{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            return {name: os.open(folder / name, flags, 0o666) for name in _NAMES}
        ends: dict[str, int] = {}
        for name in _NAMES:
            sink = self._sinks[name]
            if rank == 0 and isinstance(sink, Screen) and not self._tags:
                if name == "stderr" and sink is self._sinks["stdout"]:
                    ends[name] = os.dup(ends["stdout"])
                    self._outputs[rank, name] = self._outputs[rank, "stdout"]
                    continue
                source, ends[name] = _terminal_like(sink)
                output = Output(sink, live=True)
            else:
                source, ends[name] = os.pipe()
                output = Output(sink, tag_of(rank, name) if self._tags else "")
            os.set_blocking(source, False)
            self._outputs[rank, name] = output
            self._sources[source] = output, sink
            self._watch(source)
        return ends

    def on_ready(self, descriptor: int, data: object) -> None:
        """Do what the selector has found to be possible. Pass on what it gives."""
        if isinstance(data, Plain):
            data.flush()
            for source, (_, sink) in self._sources.items():
                if sink is data and not sink.is_full and source not in self._read:
                    self._watch(source)
            return
        _, sink = self._sources[descriptor]
        self._pass_on(descriptor)
        if sink.is_full and descriptor in self._read:
            self._unwatch(descriptor)

    def _pass_on(self, source: int) -> bool:
        """Print what has come; False if nothing has, or no more will."""
        output, _ = self._sources[source]
        try:
            chunk = os.read(source, 1 << 16)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal of which the other side is closed
                raise
            chunk = b""
        if chunk:
            output.write(chunk)
            return True
        self._close(source)
        return False

    def _watch(self, source: int) -> None:
        self._read.add(source)
        self._selector.register(source, selectors.EVENT_READ, self)

    def _unwatch(self, source: int) -> None:
        self._read.remove(source)
        self._selector.unregister(source)

    def say(self, text: str) -> None:
        """Print a line of our own to stderr."""
        self._sinks["stderr"].write(f"aiaccrun: {text}\n".encode())

    def last_words(self, rank: int) -> tuple[str, str]:
        """What ``rank``, which has ended, has written of an error, and at last; see `Output`."""
        if self._folder is None:
            output = self._outputs[rank, "stderr"]
            for source in [own for own, (each, _) in self._sources.items() if each is output]:
                self._take(source)
            return output.last_words, output.last_line
        whole = Output(_Nowhere())
        with (self._folder / f"rank.{rank}" / "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
            whole.write(file.read())
        return whole.last_words, whole.last_line

    def drop_interrupts(self) -> None:
        """From now on, leave out tracebacks that only say that a rank was interrupted."""
        for output in self._outputs.values():
            output.drop_interrupts()

    def failures(self) -> dict[str, OSError]:
        """Why lines can be written no more, by the name of the stream; each is told once."""
        failed = {
            name: sink.failure
            for name, sink in self._sinks.items()
            if sink.failure is not None and name not in self._told
        }
        self._told.update(failed)
        return failed

    def end_line(self) -> None:
        """Begin a new line on a terminal on which one has no end yet."""
        for sink in self._sinks.values():
            if isinstance(sink, Screen):
                sink.end_line()

    def take_rest(self) -> None:
        """Take what is left to print. Call it when the ranks have ended."""
        for source in list(self._sources):
            self._take(source)
            if source in self._sources:
                self._close(source)

    def _take(self, source: int) -> None:
        for _ in range(_LAST_PIECES):  # somebody outside the session may print for ever
            if not self._pass_on(source):
                break

    def waiting(self) -> int:
        """Bytes that nobody has read yet."""
        return sum(sink.waiting for sink in set(self._sinks.values()))

    def close(self) -> None:
        """Drop what nobody has read."""
        for sink in set(self._sinks.values()):
            sink.close()

    def _close(self, source: int) -> None:
        output, _ = self._sources.pop(source)
        output.close()
        if source in self._read:
            self._unwatch(source)
        os.close(source)


class _Nowhere:
    def write(self, lines: bytes) -> None:
        """Print nothing."""


def _sinks(selector: selectors.BaseSelector) -> dict[str, Plain]:
    """Where lines go; one sink if both streams go to the same place, as after `2>&1`."""
    sinks: dict[str, Plain] = {}
    places: dict[tuple[int, int], Plain] = {}
    for number, (name, stream) in enumerate(zip(_NAMES, (sys.stdout, sys.stderr), strict=True), 1):
        descriptor = number if stream is None else stream.fileno()  # None: it was closed
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        if file not in places:
            places[file] = (Screen if os.isatty(descriptor) else Plain)(descriptor, selector)
        sinks[name] = places[file]
    return sinks


def _terminal_like(screen: Screen) -> tuple[int, int]:
    """A new terminal of the size of ``screen``: the side to read, the side for a rank."""
    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST  # the real terminal translates ends of lines
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    size = fcntl.ioctl(screen.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    return master, slave
