"""The PMIx library, as far as bootstrap needs it, through ctypes; also a program of its own.

As a program it is one rank's PMIx client for one exchange: see `main`. Standard library only, so
that it starts fast. The structures are those of the PMIx standard, unchanged since version 3.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

_SUCCESS = 0
_PARTIAL_SUCCESS = -52
_GLOBAL = 3  # scope: visible to ranks on every host
_BOOL, _INT, _BYTE_OBJECT = 1, 6, 27
_EVERY_RANK = (1 << 32) - 2
_PARENT_DEATH_SIGNAL = 1  # option of prctl

_DIAGNOSIS_S = 2.0
_PARTING_S = 2.0
_LATE_S = 5


class _Proc(ctypes.Structure):
    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _ByteObject(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Data(ctypes.Union):
    _fields_ = (
        ("flag", ctypes.c_bool),
        ("integer", ctypes.c_int),
        ("bytes", _ByteObject),
        ("largest", ctypes.c_char * 24),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


_FenceDone = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
_GetDone = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Value), ctypes.c_void_p)


class PmixError(Exception):
    """A call failed; the text names it."""


class RanksMissingError(Exception):
    """The deadline passed before every rank had come."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class PmixClient:
    """One use of the PMIx server of this process's mpirun.

    Threads: one at a time; the library calls back on its own. Initialisations are counted by PMIx,
    so `close` does not disturb an MPI that is initialised in this process.
    """

    def __init__(self, path: str) -> None:
        """Connect. Raises OSError or AttributeError if ``path`` is no PMIx library, PmixError."""
        self._library = ctypes.CDLL(path)
        self._library.PMIx_Error_string.restype = ctypes.c_char_p
        self._process = _Proc()
        self._check("PMIx_Init", self._library.PMIx_Init(ctypes.byref(self._process), None, 0))

    @property
    def rank(self) -> int:
        """Rank by PMIx's account."""
        return int(self._process.rank)

    def close(self) -> None:
        """Give the connection up."""
        self._library.PMIx_Finalize(None, 0)

    def exchange(self, key: str, data: bytes, size: int, timeout_s: float) -> dict[int, bytes]:
        """Store ``data`` under ``key`` and get what the other ranks stored under it.

        Collective. Blocks: until every rank has come, at most ``timeout_s`` and a bit.

        Returns:
            Bytes by rank; ranks that came but stored nothing under this key are left out.

        Raises:
            RanksMissingError: Not every rank came in time.
            PmixError: The library failed.
        """
        deadline = time.monotonic() + timeout_s
        self._put(key, data)
        if not self._fence(deadline):
            found = self._get(range(size), key, time.monotonic() + _DIAGNOSIS_S, patience_s=1)
            raise RanksMissingError(sorted(set(range(size)) - found.keys()))
        found = self._get(range(size), key, deadline)
        absent = set(range(size)) - found.keys()
        if absent:  # once in hundreds of starts on a busy host, although the fence was over
            found |= self._get(absent, key, deadline, patience_s=_LATE_S)
        # The server forgets what a client stored when that client leaves: leave together.
        with contextlib.suppress(PmixError):
            self._fence(time.monotonic() + _PARTING_S)
        return found

    def _put(self, key: str, data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, len(data))
        value = _Value(type=_BYTE_OBJECT)
        value.data.bytes = _ByteObject(ctypes.addressof(buffer), len(data))
        put = self._library.PMIx_Put(_GLOBAL, key.encode(), ctypes.byref(value))
        self._check("PMIx_Put", put)
        self._check("PMIx_Commit", self._library.PMIx_Commit())

    def _fence(self, deadline: float) -> bool:
        """Wait for every rank; False when the deadline has passed, the fence stays entered then."""
        for earlier in list(_unfinished):  # of an attempt that gave up in this process
            if not earlier.done.wait(_left_s(deadline)):
                return False
            _unfinished.remove(earlier)
        fence = _Fence(_Proc(self._process.nspace, _EVERY_RANK))
        status = self._library.PMIx_Fence_nb(
            ctypes.byref(fence.every), 1, fence.directives, 1, fence.callback, None
        )
        self._check("PMIx_Fence_nb", status)
        if not fence.done.wait(_left_s(deadline)):
            _unfinished.append(fence)
            return False
        if fence.status == _PARTIAL_SUCCESS:
            raise PmixError("a rank gave up or ended while the others waited; look for its error")
        self._check("PMIx_Fence_nb", fence.status)
        return True

    def _get(
        self, ranks: Iterable[int], key: str, deadline: float, *, patience_s: int = 0
    ) -> dict[int, bytes]:
        """Values by rank; the server waits ``patience_s`` for one that is not there yet."""
        request = _Get(key, patience_s)
        for rank in ranks:
            with request.condition:
                request.open += 1
            status = self._library.PMIx_Get_nb(
                ctypes.byref(_Proc(self._process.nspace, rank)),
                request.key,
                request.directives,
                1,
                request.callback,
                ctypes.c_void_p(rank),
            )
            if status != _SUCCESS:
                request.answered(None, rank)
        with request.condition:
            if not request.condition.wait_for(lambda: request.open == 0, _left_s(deadline)):
                _unanswered.append(request)
            return dict(request.values)

    def _check(self, call: str, status: int) -> None:
        if status != _SUCCESS:
            text = self._library.PMIx_Error_string(status) or b""
            raise PmixError(f"{call} failed: {text.decode()} ({status})")


def is_initialized(path: str) -> bool:
    """Whether somebody in this process has initialised the PMIx library at ``path``."""
    try:
        return bool(ctypes.CDLL(path).PMIx_Initialized())
    except (OSError, AttributeError):
        return False


class _Fence:
    """A fence under way; what the library points to lives here."""

    def __init__(self, every: _Proc) -> None:
        self.every = every
        self.directives = (_Info * 1)()
        self.directives[0].key = b"pmix.collect"
        self.directives[0].value.type = _BOOL
        self.directives[0].value.data.flag = True
        self.status = _SUCCESS
        self.done = threading.Event()
        self.callback = _FenceDone(self._complete)

    def _complete(self, status: int, _: int | None) -> None:
        self.status = status
        self.done.set()


class _Get:
    """Requests for one key of several ranks; what the library points to lives here."""

    def __init__(self, key: str, patience_s: int) -> None:
        self.key = ctypes.create_string_buffer(key.encode())
        self.directives = (_Info * 1)()
        directive = self.directives[0]
        if patience_s:
            directive.key = b"pmix.timeout"
            directive.value.type = _INT
            directive.value.data.integer = patience_s
        else:
            directive.key = b"pmix.immediate"
            directive.value.type = _BOOL
            directive.value.data.flag = True
        self.condition = threading.Condition()
        self.open = 0
        self.values: dict[int, bytes] = {}
        self.callback = _GetDone(self._complete)

    def _complete(self, status: int, value: ctypes._Pointer[_Value], rank: int | None) -> None:
        data = None
        if status == _SUCCESS and value and value.contents.type == _BYTE_OBJECT:
            found = value.contents.data.bytes
            data = ctypes.string_at(found.bytes, found.size)
        self.answered(data, rank or 0)

    def answered(self, data: bytes | None, rank: int) -> None:
        """Count one answer."""
        with self.condition:
            if data is not None:
                self.values[rank] = data
            self.open -= 1
            self.condition.notify_all()


#: What the library may still call back although nobody waits any more.
_unfinished: list[_Fence] = []
_unanswered: list[_Get] = []


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@dataclass(frozen=True)
class Request:
    """One exchange to make."""

    #: PMIx libraries to try, the likeliest first.
    paths: list[str]
    key: str
    size: int
    timeout_s: float


@dataclass(frozen=True)
class Answer:
    """What became of a `Request`: values, missing ranks, or an error."""

    #: Rank of this process by PMIx's account.
    rank: int = -1
    #: Ranks that stored something, and the lengths of what they stored.
    ranks: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    error: str = ""


def exchange_once(request: Request, data: bytes) -> tuple[Answer, bytes]:
    """Make one exchange with a client of its own; the values come joined."""
    try:
        client = _first_usable(request.paths)
        try:
            found = client.exchange(request.key, data, request.size, request.timeout_s)
            ranks = sorted(found)
            lengths = [len(found[rank]) for rank in ranks]
            return Answer(client.rank, ranks, lengths), b"".join(found[rank] for rank in ranks)
        finally:
            client.close()
    except RanksMissingError as error:
        return Answer(missing=error.ranks or [-1]), b""
    except PmixError as error:
        return Answer(error=str(error)), b""


def _first_usable(paths: list[str]) -> PmixClient:
    reasons = []
    for path in paths:
        try:
            return PmixClient(path)
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
    raise PmixError(
        f"no usable libpmix.so.2 ({'; '.join(reasons)}); add the library directory of mpirun's "
        "installation to LD_LIBRARY_PATH"
    )


def main() -> None:
    """Read a `Request` from standard input and write an `Answer` to standard output.

    Both are one line of JSON, followed by the bytes.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before it could be watched
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library may print
    request = Request(**json.loads(sys.stdin.buffer.readline()))
    answer, values = exchange_once(request, sys.stdin.buffer.read())
    output.write(json.dumps(asdict(answer)).encode() + b"\n" + values)
    output.close()


if __name__ == "__main__":
    main()
