"""Where the lines of all ranks go. A reader that is slow, or has stopped, holds nobody up."""

from __future__ import annotations

import os
import select
import selectors
import stat
from contextlib import suppress
from typing import Protocol

#: So much may wait for a reader; then its ranks wait, too.
_MOST = 1 << 20


class Sink(Protocol):
    """Takes the lines of all ranks."""

    def write(self, lines: bytes) -> None:
        """Print whole lines."""


class Plain:
    """A file or a pipe. What it cannot take yet waits here, and the selector tells when it can.

    Threads: one. Never blocks: the descriptor itself may, for its flags are shared with whoever
    else has it, a shell for one; so no more is written at once than a pipe takes that has room.
    """

    def __init__(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._own = _open_again(descriptor)
        self._descriptor = descriptor if self._own is None else self._own
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)
        self._waiting = bytearray()
        self._is_registered = False
        #: Why nothing can be written any more.
        self.failure: OSError | None = None

    @property
    def waiting(self) -> int:
        """Bytes that have not been written yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether those who print should wait."""
        return len(self._waiting) >= _MOST

    def write(self, lines: bytes) -> None:
        """Print whole lines in their turn. What cannot be written is lost; `failure` says why."""
        if self.failure is None:
            self._waiting += lines
            if not self._is_registered:
                self.flush()

    def flush(self) -> None:
        """Write what there is room for."""
        while self._waiting and self._room.poll(0):
            piece = self._waiting[: select.PIPE_BUF]
            end = piece.rfind(b"\n") + 1
            try:
                written = os.write(self._descriptor, piece[: end or None])
            except BlockingIOError:  # somebody else has taken the room
                break
            except OSError as error:
                self.failure = error
                self._waiting.clear()
                break
            del self._waiting[:written]
        if bool(self._waiting) == self._is_registered:
            return
        self._is_registered = not self._is_registered
        if self._is_registered:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self)
        else:
            self._selector.unregister(self._descriptor)

    def close(self) -> None:
        """Drop what is waiting."""
        if self._is_registered:
            self._selector.unregister(self._descriptor)
        if self._own is not None:
            os.close(self._own)


class Screen(Plain):
    """A terminal: the line that rank 0 has not ended, a progress bar often, stays the lowest."""

    def __init__(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        super().__init__(descriptor, selector)
        self._unended = b""

    def fileno(self) -> int:
        """Descriptor of the terminal."""
        return self._descriptor

    def write(self, lines: bytes) -> None:
        """Print whole lines above the one that has no end yet."""
        super().write((b"\r\033[K" + lines + self._unended) if self._unended else lines)

    def pass_on(self, chunk: bytes) -> None:
        """Print what rank 0 has written as it is."""
        super().write(chunk)
        line = (self._unended + chunk).rpartition(b"\n")[2]
        self._unended = line[line.rstrip(b"\r").rfind(b"\r") + 1 :]

    def end_line(self) -> None:
        """Begin a new line if rank 0 has not."""
        if self._unended:
            super().write(b"\n")
            self._unended = b""


def _open_again(descriptor: int) -> int | None:
    """The pipe or terminal with flags of our own, so that writing never blocks; else None."""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):  # a terminal of another user, or nobody reads the pipe
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return None
