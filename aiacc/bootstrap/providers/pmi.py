"""Bootstrap under MPICH's mpirun (hydra): the PMI-1 text protocol on an inherited descriptor.

The MPI library of this process talks on the same descriptor when it initialises. Both orders work
as long as the two do not talk at the same time and nobody ends the conversation for the other: this
module reads exactly one answer per request, never closes, and finalises only when the process ends
and no MPI was initialised in it. Somebody has to: when a process ends without, hydra kills the job,
which is right only where a rank has failed (`leave_unfinished`).
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import os
import select
import stat
import threading
from collections.abc import Iterator

from aiacc.bootstrap.provider import GENERATIONS, Deadline, check_payload, rank_list
from aiacc.bootstrap.providers.mapped import initialized_mpis
from aiacc.bootstrap.records import Record
from aiacc.exceptions import BootstrapError

_DIAGNOSIS_S = 1.0
_PARTING_S = 2.0
_DIAGNOSED_RANKS = 256
#: MPI_MAX_LIBRARY_VERSION_STRING of every flavour.
_VERSION_BYTES = 8192
#: Room in a value for what hydra adds, and for the number of parts.
_VALUE_MARGIN = 64


class PmiChannel:
    """The conversation of this process with hydra.

    Threads: one at a time. It outlives providers, because an answer that came too late for one of
    them must still be read before the next request.
    """

    def __init__(self, descriptor: int) -> None:
        #: At the end of the process.
        self.says_goodbye = True
        self._descriptor = descriptor
        self._received = b""
        self._owed: list[str] = []  # commands whose answers were not waited for
        self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", Deadline(10.0))
        maxes = self._ask("cmd=get_maxes", "maxes", Deadline(10.0))
        self.value_bytes = int(maxes.get("vallen_max", "1024")) - _VALUE_MARGIN
        if self.value_bytes < _VALUE_MARGIN:
            raise ValueError(f"vallen_max={maxes.get('vallen_max')}")
        answer = self._ask("cmd=get_my_kvsname", "my_kvsname", Deadline(10.0))
        self._space = answer["kvsname"]
        atexit.register(self._finalize, os.getpid())

    def put(self, key: str, value: str, deadline: Deadline) -> None:
        """Store a value; the others see it after a barrier. A key can be used once."""
        self._drain("", deadline)
        answer = self._ask(
            f"cmd=put kvsname={self._space} key={key} value={value}", "put_result", deadline
        )
        if answer.get("rc", "0") != "0":
            raise BootstrapError(f"[bootstrap] pmi: hydra did not store {key}: {answer}")

    def get(self, key: str, deadline: Deadline) -> str | None:
        """The value of a key, None if there is none."""
        self._drain("get_result", deadline)
        answer = self._ask(f"cmd=get kvsname={self._space} key={key}", "get_result", deadline)
        return answer.get("value") if answer.get("rc", "0") == "0" else None

    def barrier(self, deadline: Deadline) -> None:
        """Wait for every rank. Raises TimeoutError; the barrier stays entered then."""
        self._drain("", deadline)
        self._ask("cmd=barrier_in", "barrier_out", deadline)

    def _finalize(self, pid: int) -> None:
        if os.getpid() != pid or not self.says_goodbye or mpi_was_initialized():
            return
        with contextlib.suppress(TimeoutError, BootstrapError):
            self._ask("cmd=finalize", "finalize_ack", Deadline(_PARTING_S))

    def _drain(self, kind: str, deadline: Deadline) -> None:
        """Read what an attempt that gave up did not: answers of ``kind``, or all."""
        while any(kind in ("", owed) for owed in self._owed):
            self._read_answer(deadline)

    def _ask(self, request: str, expected: str, deadline: Deadline) -> dict[str, str]:
        self._send(request)
        self._owed.append(expected)
        while True:  # the answer of a barrier that was given up may come in between
            answer = self._read_answer(deadline)
            if answer["cmd"] == expected:
                return answer

    def _read_answer(self, deadline: Deadline) -> dict[str, str]:
        answer = self._read_line(deadline)
        command = answer.get("cmd", "")
        if command not in self._owed:
            raise BootstrapError(
                f"[bootstrap] pmi: hydra said {command!r} (expected one of {self._owed}); "
                "something else in this process, such as MPI_Init in another thread, uses PMI_FD"
            )
        self._owed.remove(command)
        return answer

    def _send(self, request: str) -> None:
        data = request.encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from error

    def _read_line(self, deadline: Deadline) -> dict[str, str]:
        while b"\n" not in self._received:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN)
            if not poller.poll(deadline.left_s() * 1000):
                raise TimeoutError
            try:
                data = os.read(self._descriptor, 65536)
            except OSError as error:
                raise self._gone(error.strerror or str(error)) from error
            if not data:
                raise self._gone("closed")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        words = (word.partition("=") for word in line.decode(errors="replace").split())
        return {name: value for name, _, value in words}

    def _gone(self, why: str) -> BootstrapError:
        return BootstrapError(
            f"[bootstrap] pmi: the connection to mpirun (PMI_FD={self._descriptor}) is gone: {why};"
            " initialise before MPI_Finalize, and in the process that mpirun started"
        )


def leave_unfinished() -> None:
    """Say no goodbye when the process ends, so that hydra ends the other ranks."""
    for channel in _channels.values():
        channel.says_goodbye = False


def mpi_was_initialized() -> bool:
    """Whether an MPI that finalises PMI itself was initialised in this process.

    Open MPI does not know PMI-1: in a process that MPICH's mpirun has started, mpi4py for Open MPI
    for example makes a job of one rank, and leaves the goodbye to us.
    """
    return any(not _is_open_mpi(library) for library in initialized_mpis())


def _is_open_mpi(library: ctypes.CDLL) -> bool:
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    library.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
    return b"Open MPI" in text.value


_channels: dict[int, PmiChannel] = {}
_channels_lock = threading.Lock()


def _channel(descriptor: int) -> PmiChannel:
    try:
        usable = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except (OSError, OverflowError):
        usable = False
    if not usable:
        raise BootstrapError(
            f"[bootstrap] pmi: PMI_FD={descriptor} (expected the open descriptor that mpirun gave)"
            "; this process was started by one that did not pass it on: let mpirun start python "
            "itself, or set AIACC_RANK, AIACC_SIZE and AIACC_ADDR"
        )
    with _channels_lock:
        if descriptor not in _channels:
            try:
                _channels[descriptor] = PmiChannel(descriptor)
            except (TimeoutError, KeyError, ValueError) as error:
                raise BootstrapError(
                    f"[bootstrap] pmi: what is behind PMI_FD={descriptor} does not speak PMI-1 "
                    f"({error!r}); start with MPICH's mpirun, or set AIACC_RANK, AIACC_SIZE and "
                    "AIACC_ADDR"
                ) from error
        return _channels[descriptor]


class PmiProvider:
    """Ranks that MPICH's mpirun started; see `provider.Provider`."""

    name = "pmi"
    meeting_host = ""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        descriptor: int,
        generation: int,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.generation = generation
        self._descriptor = descriptor
        self._round = 0

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        deadline = Deadline(timeout_s)
        channel = _channel(self._descriptor)
        try:
            self._skip_used_generations(channel, deadline)
            mine = Record(self.rank, self.size, self.generation)
            values = _split(mine.encode(payload), channel.value_bytes)
            for part, value in enumerate(values):
                channel.put(self._key(self.rank, part), value, deadline)
            channel.barrier(deadline)
            payloads = [self._fetch(channel, rank, mine, deadline) for rank in range(self.size)]
        except TimeoutError:
            raise self._timeout(channel, timeout_s) from None
        self._round += 1
        return payloads

    def close(self) -> None:
        """The descriptor belongs to mpirun and to MPI: it stays open."""

    def _key(self, rank: int, part: int) -> str:
        return f"aiacc-{self.generation}-{self._round}-{rank}-{part}"

    def _skip_used_generations(self, channel: PmiChannel, deadline: Deadline) -> None:
        # hydra kills the job when a key is put twice, and a script may start one program after
        # another as the same rank.
        while self._round == 0 and channel.get(self._key(self.rank, 0), deadline) is not None:
            self.generation += 1
        GENERATIONS.catch_up(self.generation)

    def _fetch(self, channel: PmiChannel, rank: int, mine: Record, deadline: Deadline) -> bytes:
        try:
            parts, text = _part(channel.get(self._key(rank, 0), deadline))
            rest = (channel.get(self._key(rank, part), deadline) for part in range(1, parts))
            text += "".join(_part(value)[1] for value in rest)
            record, payload = Record.decode(_decode(text))
        except ValueError as error:
            raise BootstrapError(
                f"[bootstrap] pmi: no entry of rank {rank} for exchange {self._round} of "
                f"generation {self.generation} ({error}); initialise equally often on every rank, "
                "and in the same order with MPI_Init"
            ) from error
        record.check_against(mine, rank)
        return payload

    def _timeout(self, channel: PmiChannel, timeout_s: float) -> BootstrapError:
        missing = list(self._silent_ranks(channel))
        who = f"no word from {rank_list(missing)}" if missing else "some rank did not come"
        return BootstrapError(
            f"[bootstrap] pmi: {who} of {self.size} within {timeout_s:g} s of rank {self.rank} "
            "(on other hosts, ranks that came can be among them); look whether they initialise, "
            "or hang before it. This process must not call MPI_Init any more"
        )

    def _silent_ranks(self, channel: PmiChannel) -> Iterator[int]:
        deadline = Deadline(_DIAGNOSIS_S)
        for rank in range(min(self.size, _DIAGNOSED_RANKS)):
            try:
                if channel.get(self._key(rank, 0), deadline) is None:
                    yield rank
            except (TimeoutError, BootstrapError):
                return


def _split(data: bytes, value_bytes: int) -> list[str]:
    """Values without blanks and "=": "<number of parts>.<text>"."""
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    step = value_bytes - 8
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    return [f"{len(pieces)}.{piece}" for piece in pieces]


def _part(value: str | None) -> tuple[int, str]:
    """Inverse of `_split` for one value. Raises ValueError."""
    if value is None:
        raise ValueError("nothing is stored")
    parts, text = value.split(".")
    return int(parts), text


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
