"""What ranks print, as whole lines: lines of several ranks never merge."""

from __future__ import annotations

import re

from aiacc.run.sink import Screen, Sink

#: What has no end of line is passed on when it is longer than this.
_LONGEST = 1 << 20
#: So much of a last line is repeated.
_LONGEST_WORDS = 300
#: What torchrun's and other loggers put before the lines of a traceback.
_RANK = re.compile(rb"\[rank\d+\]: ?")
_TRACEBACK = b"Traceback (most recent call last)"
#: The first line of a group of exceptions, and what Python draws around those in it.
_GROUP = re.compile(rb"  \+ Exception Group Traceback")
_MEMBER = re.compile(rb" +\+(-\+)?-+ (\d+|\.\.\.) -+$")
_MARGIN = re.compile(rb" +\| ?")
#: The last line of a traceback, also of one that Python prints without its first.
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: .*)?$")
#: How others tell an error: "train.py: error: no such option". Not "round-off errors", nor numbers
#: that a training prints, "test error: 0.25".
_COMPLAINT = re.compile(
    rb"([^\s:]+: )?(\w+ ){0,2}(error|fatal):(?!\s*([-+.\d]|nan|inf))"
    rb"|[^\s:]+: .*\[Errno \d+\]|terminate called after throwing",
    re.IGNORECASE,
)
#: The text of an error that another rank is the cause of, in the words of any class of errors.
_LOST = re.compile(rb"\[\w+\] (rank \d+('s script has ended| has shut down)|lost )")
#: What Python prints between the tracebacks of a chain.
_LINKS = (b"During handling of the above", b"The above exception was the direct")


class Output:
    """One stream of one rank on its way to a sink, in whole lines, each after a tag.

    Threads: one. What has no end of line yet is held back, unless the sink is a screen that rank 0
    writes to (``live``).
    """

    def __init__(self, sink: Sink, tag: str = "", *, live: bool = False) -> None:
        self._sink = sink
        self._tag = tag.encode()
        self._live = live
        self._rest = bytearray()
        self._traceback: list[bytes] | None = None
        self._drops_interrupts = False
        self._in_traceback = self._is_ignored = self._is_linked = self._in_group = False
        self._error = self._complaint = self._last = b""

    @property
    def last_words(self) -> str:
        """The end of the last traceback, else the last line that tells an error, else ""."""
        return (self._error or self._complaint).decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line that says anything, such as what ``sys.exit(text)`` prints."""
        return self._last[:_LONGEST_WORDS].decode(errors="replace")

    def drop_interrupts(self) -> None:
        """From now on, leave out tracebacks that an interrupt is the end of."""
        self._drops_interrupts = True
        if self._live and isinstance(self._sink, Screen):
            self._sink.end_line()
            self._live = False
            self._rest.clear()

    def write(self, chunk: bytes) -> None:
        """Take what the rank wrote."""
        if self._live and isinstance(self._sink, Screen):
            self._sink.pass_on(chunk)
        if self._rest.endswith(b"\r") and not chunk.startswith(b"\n"):
            self._print(self._noted(self._take_rest()))
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if chunk.endswith(b"\r"):  # perhaps the first half of "\r\n"
            end = max(chunk.rfind(b"\n", 0, end), chunk.rfind(b"\r", 0, end))
        if end < 0:
            self._rest += chunk
            if len(self._rest) > _LONGEST:
                self._print([self._take_rest()])
            return
        lines = []
        for line in (self._take_rest() + chunk[: end + 1]).splitlines(keepends=True):
            lines += self._noted(line)
        self._rest += chunk[end + 1 :]
        self._print(lines)

    def _take_rest(self) -> bytes:
        rest = bytes(self._rest)
        self._rest.clear()
        return rest

    def close(self) -> None:
        """Write what is left, as a line."""
        if self._rest:
            self._print(self._noted(self._take_rest() + b"\n"))
        self._print(self._traceback or [])
        self._traceback = None
        if self._live and isinstance(self._sink, Screen):
            self._sink.end_line()

    def _print(self, lines: list[bytes]) -> None:
        if lines and not self._live:
            self._sink.write(b"".join(self._tag + line for line in lines))

    def _noted(self, line: bytes) -> list[bytes]:
        """The lines to print now that this one has come."""
        text = line.rstrip()
        words = _RANK.sub(b"", text, count=1)
        self._last = words or self._last
        self._note_error(words)
        if not self._drops_interrupts:
            return [line]
        if self._traceback is None:
            if not text.startswith((_TRACEBACK, *_LINKS)):
                return [line] if text else []
            self._traceback = []
        self._traceback.append(line)
        ends = bool(text) and not text.startswith((b" ", b"Traceback", *_LINKS))
        if not ends:
            return []
        held, self._traceback = self._traceback, None
        return [] if is_consequence(text.decode(errors="replace")) else held

    def _note_error(self, text: bytes) -> None:
        if self._in_group and text.startswith(b" "):
            self._note_in_group(text)
            return
        self._in_group = _GROUP.match(text) is not None
        if self._in_group:
            self._in_traceback, self._error = True, b""
            self._is_ignored = self._is_linked = False
        elif text.startswith(b"Exception ignored in"):  # a traceback follows that ends nothing
            self._is_ignored = True
        elif text.startswith(_TRACEBACK):
            self._in_traceback = True
        elif _EXCEPTION.match(text) or (self._in_traceback and text and text[:1] not in b" \t"):
            self._in_traceback = False
            # What a script raises because it has lost a rank is a consequence, too.
            follows = self._is_linked and is_consequence(self._error.decode(errors="replace"))
            if not (self._is_ignored or follows):
                self._error = text
            self._is_ignored = self._is_linked = False
        elif text.startswith(_LINKS):
            self._is_linked = True
        elif self._error and _LOST.match(text):  # TensorFlow has a line before
            self._error += b" " + text
        elif _COMPLAINT.match(text):
            self._complaint = text

    def _note_in_group(self, text: bytes) -> None:
        """The words of a group are those of itself and of all that are in it."""
        words = _MARGIN.sub(b"", text, count=1)
        if _MEMBER.match(text) or words.startswith(_TRACEBACK):
            self._in_traceback = True
        elif self._in_traceback and words != text and words[:1] not in b" \t":
            self._in_traceback = False
            self._error += (b"; " if self._error else b"") + words


def is_consequence(last_words: str) -> bool:
    """Whether a rank that ended with this line did so because of a signal or of another rank."""
    name = last_words.partition(":")[0].rpartition(".")[2]
    told = name in ("KeyboardInterrupt", "ShutdownError", "PeerLostError")
    return told or _LOST.search(last_words.encode()) is not None


def tag_of(rank: int, stream: str) -> str:
    """The mark of one stream of one rank, in the form of Open MPI and Horovod."""
    return f"[1,{rank}]<{stream}>:"
