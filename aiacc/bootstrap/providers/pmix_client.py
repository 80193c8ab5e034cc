"""The PMIx library, as far as bootstrap needs it, through ctypes; also a program of its own.

As a program it is one rank's PMIx client for one exchange: see `main`. Standard library only, so
that it starts fast. The structures are those of the PMIx standard, unchanged since version 3.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import math
import os
import select
import signal
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

_SUCCESS = 0
_PARTIAL_SUCCESS = -52
_GLOBAL = 3  # scope: visible to ranks on every host
_BOOL, _INT, _BYTE_OBJECT = 1, 6, 27
_EVERY_RANK = (1 << 32) - 2
_PARENT_DEATH_SIGNAL = 1  # option of prctl

_DIAGNOSIS_S = 2.0
#: Requests for what is late, of so many seconds: a fence may end early, see `hold_last_answer`.
_LATE_REQUESTS, _LATE_S = 5, 1
#: Longer than those take, so that nobody leaves meanwhile.
_PARTING_S = 10.0
#: How often to look for the server's last answer, how long to keep it from the library, and how
#: long it may take to come: the library waits for 2 s.
_LOOK_S, _SETTLING_S, _LAST_ANSWER_S = 0.001, 0.05, 1.5
_MORE_THAN_AN_ANSWER = 1 << 16  # bytes


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


class _Answer(ctypes.Structure):
    """See csrc/bindings/pmix_answers.h."""

    _fields_ = (
        ("event", ctypes.c_int),
        ("there", ctypes.c_int),
        ("status", ctypes.c_int),
        ("bytes", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


class _Call(ctypes.Structure):
    """One request of one process."""

    _fields_ = (("process", _Proc), ("answer", _Answer))


class _Options(ctypes.Structure):
    """What the calls for several processes have in common."""

    _fields_ = (("key", ctypes.c_char * 512), ("directive", _Info))


class PmixError(Exception):
    """A call failed; the text names it."""


class RanksMissingError(Exception):
    """The deadline passed before every rank had come."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class PmixClient:
    """One use of the PMIx server of this process's mpirun.

    Threads: one at a time; the library calls back on its own, functions of the compiled core, as
    it may do so after Python has ended. Initialisations are counted by PMIx, so `close` does not
    disturb an MPI that is initialised in this process.
    """

    def __init__(self, path: str, core: ctypes.CDLL) -> None:
        """Connect. Raises OSError or AttributeError if ``path`` is no PMIx library, PmixError."""
        self._core = core
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
        for _ in range(_LATE_REQUESTS):
            absent = set(range(size)) - found.keys()
            if not absent:
                break
            # The fence ended before they came, which MPI_Finalize may cause (`hold_last_answer`).
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
            if not earlier.wait(deadline):
                return False
            _unfinished.remove(earlier)
            earlier.free()
        every = _Proc(self._process.nspace, _EVERY_RANK)
        fence = _Calls([every], _Info(key=b"pmix.collect", value=_flag()))
        status = fence.start(self._library.PMIx_Fence_nb, 1, self._core.aiacc_pmix_answer)
        if status != _SUCCESS:
            fence.free()
        self._check("PMIx_Fence_nb", status)
        _unfinished.append(fence)
        if not fence.wait(deadline):
            return False
        _unfinished.remove(fence)
        status = fence.answers[0].status
        fence.free()
        if status == _PARTIAL_SUCCESS:
            raise PmixError("a rank gave up or ended while the others waited; look for its error")
        self._check("PMIx_Fence_nb", status)
        return True

    def _get(
        self, ranks: Iterable[int], key: str, deadline: float, *, patience_s: int = 0
    ) -> dict[int, bytes]:
        """Values by rank; the server waits ``patience_s`` for one that is not there yet."""
        asked = list(ranks)
        processes = [_Proc(self._process.nspace, rank) for rank in asked]
        if patience_s:
            directive = _Info(key=b"pmix.timeout", value=_integer(patience_s))
        else:
            directive = _Info(key=b"pmix.immediate", value=_flag())
        request = _Calls(processes, directive, key.encode())
        request.start(self._library.PMIx_Get_nb, request.key, self._core.aiacc_pmix_answer_with)
        complete = request.wait(deadline)
        found = {
            rank: ctypes.string_at(answer.bytes, answer.size)
            for rank, answer in zip(asked, request.answers, strict=True)
            if self._core.aiacc_pmix_is_there(ctypes.byref(answer)) and answer.bytes
        }
        if complete:
            request.free()
        return found

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


class _Calls:
    """Calls under way, one per process.

    What the library points to lives in memory that Python does not own and only `free` gives back:
    who stops waiting leaves it to the library, which may answer later, also after Python's end.
    """

    def __init__(self, processes: list[_Proc], directive: _Info, key: bytes = b"") -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._open = 0
        self._options = _Options.from_address(_allocate(_Options))
        self._options.key = key
        self._options.directive = directive
        calls = _Call * len(processes)
        self._calls = calls.from_address(_allocate(calls))
        for call, process in zip(self._calls, processes, strict=True):
            call.process = process
            call.answer.event = self._event

    @property
    def answers(self) -> list[_Answer]:
        """In the order of the processes; one that is not there must not be read."""
        return [call.answer for call in self._calls]

    @property
    def key(self) -> ctypes.c_void_p:
        """Key that is asked for."""
        return ctypes.c_void_p(ctypes.addressof(self._options))

    def start(self, function: Callable[..., int], second: object, callback: object) -> int:
        """Call ``function`` for each process; the latest status."""
        status = _SUCCESS
        for call in self._calls:
            status = function(
                ctypes.byref(call.process),
                second,
                ctypes.byref(self._options.directive),
                1,
                callback,
                ctypes.byref(call.answer),
            )
            self._open += status == _SUCCESS
        return status

    def wait(self, deadline: float) -> bool:
        """Wait for all answers; False if some are still to come."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        while self._open and poll.poll(math.ceil(_left_s(deadline) * 1000)):
            self._open -= os.eventfd_read(self._event)
        return self._open == 0

    def free(self) -> None:
        """Give the memory back. Every answer has come."""
        for answer in self.answers:
            _LIBC.free(ctypes.c_void_p(answer.bytes))
        for memory in (self._calls, self._options):
            _LIBC.free(ctypes.byref(memory))
        os.close(self._event)


def _allocate(kind: type[ctypes.Structure] | type[ctypes.Array[_Call]]) -> int:
    return int(_LIBC.calloc(ctypes.c_size_t(1), ctypes.c_size_t(ctypes.sizeof(kind))))


def _flag() -> _Value:
    return _Value(type=_BOOL, data=_Data(flag=True))


def _integer(number: int) -> _Value:
    return _Value(type=_INT, data=_Data(integer=number))


_LIBC = ctypes.CDLL(None)
_LIBC.calloc.restype = ctypes.c_void_p

#: Fences that nobody waits for any more: the next one has to, as PMIx tells them apart by order.
_unfinished: list[_Calls] = []


def has_unfinished_fence() -> bool:
    """Whether this process is in a fence that it has given up, and not every rank has come to."""
    return not all(fence.wait(0.0) for fence in _unfinished)


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@dataclass(frozen=True)
class Request:
    """One exchange to make."""

    #: PMIx libraries to try, the likeliest first.
    paths: list[str]
    #: Compiled core, which has what they call back.
    core: str
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


def exchange_once(
    request: Request, data: bytes, before_close: Callable[[], None] = lambda: None
) -> tuple[Answer, bytes]:
    """Make one exchange with a client of its own; the values come joined."""
    try:
        client = _first_usable(request)
        try:
            found = client.exchange(request.key, data, request.size, request.timeout_s)
            ranks = sorted(found)
            lengths = [len(found[rank]) for rank in ranks]
            return Answer(client.rank, ranks, lengths), b"".join(found[rank] for rank in ranks)
        finally:
            try:
                before_close()
            finally:
                client.close()
    except RanksMissingError as error:
        return Answer(missing=error.ranks or [-1]), b""
    except (OSError, PmixError) as error:
        return Answer(error=str(error)), b""


def _first_usable(request: Request) -> PmixClient:
    core = ctypes.CDLL(request.core)
    reasons = []
    for path in request.paths:
        try:
            return PmixClient(path, core)
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
    raise PmixError(
        f"no usable libpmix.so.2 ({'; '.join(reasons)}); add the library directory of mpirun's "
        "installation to LD_LIBRARY_PATH"
    )


def hold_last_answer() -> None:
    """Keep the server's answer to PMIx_Finalize from the library of this process for a while.

    The library closes the connection when it reads the answer. The server sends that in one thread
    and notes in another that the client has finished; a connection that closes earlier it takes for
    a dead rank, and ends all later fences one rank early (PMIx 4.2). On a busy host that happens
    about once in a few hundred times. Nothing tells when it has noted.
    """
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - pathlib would be one more import
    except OSError:
        return
    for descriptor in map(int, names):
        with contextlib.suppress(OSError):  # the listing's own, or no connection
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                connection = socket.socket(fileno=os.dup(descriptor))
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()
                    hold(connection)


def hold(connection: socket.socket) -> threading.Thread:
    """Let ``connection`` be readable `_SETTLING_S` after the latest bytes; the thread that does."""

    def waiting() -> int:
        count = array.array("i", [0])
        fcntl.ioctl(connection, termios.FIONREAD, count)
        return count[0]

    def release() -> None:
        deadline = time.monotonic() + _LAST_ANSWER_S
        settled = False
        while not settled and time.monotonic() < deadline:
            time.sleep(_LOOK_S)  # what is held raises no event
            if count := waiting():
                time.sleep(_SETTLING_S)
                settled = waiting() == count  # or what had come was not the answer
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    thread = threading.Thread(target=release, daemon=True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MORE_THAN_AN_ANSWER)
    try:
        thread.start()
    except RuntimeError:  # a container may have no more threads
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return thread


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
    answer, values = exchange_once(request, sys.stdin.buffer.read(), hold_last_answer)
    output.write(json.dumps(asdict(answer)).encode() + b"\n" + values)
    output.close()


if __name__ == "__main__":
    main()
