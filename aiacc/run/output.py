"""Marks the lines that ranks print with the rank that printed them."""

from __future__ import annotations

import re
from typing import BinaryIO

#: A progress bar ends its lines by carriage returns.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")


class LineTagger:
    """Writes whole lines of one stream of one rank, each after a tag.

    Threads: one. What has no end of line yet is held back, so that ranks do not mix within a line.
    """

    def __init__(self, tag: str, sink: BinaryIO) -> None:
        self._tag = tag.encode()
        self._sink = sink
        self._rest = b""

    def write(self, chunk: bytes) -> None:
        """Take what the rank wrote."""
        text = self._rest + chunk
        end = 0
        lines = []
        for match in _LINE.finditer(text):
            # A carriage return at the very end may be the first half of "\r\n".
            if match.end() == len(text) and text.endswith(b"\r"):
                break
            lines.append(self._tag + match.group())
            end = match.end()
        self._rest = text[end:]
        if lines:
            self._sink.write(b"".join(lines))
            self._sink.flush()

    def close(self) -> None:
        """Write what is left, as a line."""
        if self._rest:
            self._sink.write(self._tag + self._rest + b"\n")
            self._sink.flush()
            self._rest = b""


def tag_of(rank: int, stream: str) -> str:
    """The mark of one stream of one rank, in the form of Open MPI and Horovod."""
    return f"[1,{rank}]<{stream}>:"
