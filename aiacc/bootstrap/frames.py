"""Messages of the rendezvous: framing, limits and the proof that both ends know the token."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import hmac
import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from aiacc.bootstrap.provider import MAX_PAYLOAD_BYTES, PROTOCOL_VERSION
from aiacc.bootstrap.untrusted import check_fields, read_object

_MAGIC = b"AIRV"
_HEADER = struct.Struct("!4sHHI")  # magic, version, kind, bytes that follow
_LENGTH = struct.Struct("!I")

#: Buffers per system call, far below the system's limit.
_PARTS = 16
#: Longest message that somebody who has not proved to be a rank may send.
MAX_HELLO_BYTES = 4096
#: Bytes of the random number that each end wants to see used.
CHALLENGE_BYTES = 16


class Kind(enum.IntEnum):
    """What a message is; numbers are part of the wire format."""

    CHALLENGE = 1  # rank 0: random bytes
    HELLO = 2  # client: who am I, proof, counter-challenge
    WELCOME = 3  # rank 0: proof
    REFUSE = 4  # rank 0, to one client: text
    PAYLOAD = 5  # client: round number, bytes
    RESULT = 6  # rank 0: generation, payload of every rank
    FAIL = 7  # rank 0, to every client: text
    IMPATIENT = 8  # client: my time is over; answered by FAIL, which says who is missing


class Message(NamedTuple):
    """One message."""

    kind: Kind
    body: bytes


class ProtocolError(Exception):
    """What arrived is not a message; the text says what it looks like instead."""


class ConnectionGoneError(Exception):
    """The other end closed or lost the connection."""


class Channel:
    """Messages over one non-blocking socket, which it owns.

    Threads: one.
    """

    def __init__(self, sock: socket.socket, *, limit: int) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # a connection that is gone already is noticed later
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._limit = limit
        self._received = bytearray()
        self._to_send: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Descriptor for selectors."""
        return self._socket.fileno()

    def allow(self, limit: int) -> None:
        """Accept messages of up to ``limit`` bytes from now on."""
        self._limit = limit

    @property
    def unsent(self) -> bool:
        """Whether `flush` has something left to do."""
        return bool(self._to_send)

    def queue(self, kind: Kind, body: bytes) -> None:
        """Add a message for `flush` to send."""
        header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, kind, len(body))
        # The body is not copied: a result goes to many channels.
        self._to_send.extend(memoryview(part) for part in (header, body) if part)

    def flush(self) -> None:
        """Send what the socket takes now. Never blocks."""
        try:
            while self._to_send:
                parts = list(itertools.islice(self._to_send, _PARTS))
                self._sent(self._socket.sendmsg(parts, (), socket.MSG_NOSIGNAL))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionGoneError(error.strerror or str(error)) from error

    def _sent(self, count: int) -> None:
        while count:
            part = self._to_send.popleft()
            if count < len(part):
                self._to_send.appendleft(part[count:])
                return
            count -= len(part)

    def receive(self) -> list[Message]:
        """Messages that are complete now, possibly none. Never blocks."""
        try:
            data = self._socket.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionGoneError(error.strerror or str(error)) from error
        if not data:
            raise ConnectionGoneError(
                "closed in the middle of a message" if self._received else "closed"
            )
        self._received += data
        return self._split()

    def finish_sending(self) -> None:
        """Tell the other end that nothing more will come, without discarding what is under way."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def discard(self) -> None:
        """Read and forget. Raises ConnectionGoneError at the end. Never blocks."""
        try:
            if not self._socket.recv(1 << 18):
                raise ConnectionGoneError("closed")
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionGoneError(error.strerror or str(error)) from error

    def _split(self) -> list[Message]:
        messages: list[Message] = []
        while True:
            prefix = min(len(self._received), len(_MAGIC))
            if self._received[:prefix] != _MAGIC[:prefix]:
                raise ProtocolError(f"{bytes(self._received[:16])!r} is not a message of aiacc")
            if len(self._received) < _HEADER.size:
                return messages
            _, version, kind, length = _HEADER.unpack_from(self._received)
            if version != PROTOCOL_VERSION:
                raise ProtocolError(
                    f"rendezvous protocol version {version} (expected {PROTOCOL_VERSION}); "
                    "install the same aiacc everywhere"
                )
            if kind not in Kind.__members__.values():
                raise ProtocolError(f"message of unknown kind {kind}")
            if length > self._limit:
                raise ProtocolError(f"message of {length} bytes (expected at most {self._limit})")
            end = _HEADER.size + length
            if len(self._received) < end:
                return messages
            messages.append(Message(Kind(kind), bytes(self._received[_HEADER.size : end])))
            del self._received[:end]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Hello(NamedTuple):
    """How a client introduces itself."""

    rank: int
    size: int
    generation: int
    label: str
    challenge: str
    #: Process id, and where it is valid; see `rivals.process_space`.
    pid: int = 0
    space: str = ""

    def encode(self, token: str, challenge: bytes) -> bytes:
        """Body of a HELLO that answers ``challenge``."""
        fields = json.dumps(self._asdict(), sort_keys=True)
        return json.dumps({"fields": fields, "proof": proof(token, challenge, fields)}).encode()

    @staticmethod
    def decode(body: bytes, token: str, challenge: bytes) -> tuple[Hello, bool]:
        """The hello, and whether its sender knows ``token``. Raises ProtocolError."""
        try:
            outer = read_object(body)
            text, given = str(outer["fields"]), str(outer["proof"])
            fields = read_object(text)
            check_fields(Hello, fields)
            hello = Hello(**fields)
            known = hmac.compare_digest(given.encode(), proof(token, challenge, text).encode())
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolError(f"malformed hello: {error}") from error
        numbers = (hello.rank, hello.size, hello.generation)
        if not all(0 <= value < 1 << 31 for value in numbers):
            raise ProtocolError(f"malformed hello: rank, size, generation {numbers}")
        # The label goes into logs and errors of every rank.
        label = "".join(one if one.isprintable() else "?" for one in hello.label[:200])
        return hello._replace(label=label), known


def proof(token: str, challenge: bytes, fields: str) -> str:
    """What only a holder of ``token`` can compute for a fresh ``challenge``."""
    return hmac.new(token.encode(), challenge + fields.encode(), hashlib.sha256).hexdigest()


def encode_result(generation: int, payloads: Sequence[bytes]) -> bytes:
    """Body of a RESULT."""
    parts = [_LENGTH.pack(generation)]
    parts += [_LENGTH.pack(len(payload)) + payload for payload in payloads]
    return b"".join(parts)


def decode_result(body: bytes, size: int) -> tuple[int, list[bytes]]:
    """Generation and payloads of a RESULT for ``size`` ranks. Raises ProtocolError."""
    payloads: list[bytes] = []
    try:
        (generation,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size
        for _ in range(size):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size + length
            payloads.append(body[at - length : at])
    except struct.error as error:
        raise ProtocolError(f"truncated result: {error}") from error
    if at != len(body):
        raise ProtocolError(f"result of {len(body)} bytes (expected {at})")
    return generation, payloads


def result_limit(size: int) -> int:
    """Longest RESULT of ``size`` ranks, in bytes."""
    return _LENGTH.size + size * (_LENGTH.size + MAX_PAYLOAD_BYTES)


def encode_payload(round_number: int, payload: bytes) -> bytes:
    """Body of a PAYLOAD."""
    return _LENGTH.pack(round_number) + payload


def decode_payload(body: bytes) -> tuple[int, bytes]:
    """Round number and payload of a PAYLOAD. Raises ProtocolError."""
    if len(body) < _LENGTH.size:
        raise ProtocolError(f"payload of {len(body)} bytes (expected a round number)")
    return int(_LENGTH.unpack_from(body)[0]), body[_LENGTH.size :]


#: Longest PAYLOAD, in bytes.
MAX_PAYLOAD_MESSAGE_BYTES = _LENGTH.size + MAX_PAYLOAD_BYTES
