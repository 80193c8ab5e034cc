"""Explicit bootstrap: rank 0 listens on AIACC_ADDR while the ranks exchange their payloads."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque

from aiacc import _core
from aiacc.bootstrap import frames
from aiacc.bootstrap.address import join_address, split_address
from aiacc.bootstrap.frames import (
    Channel,
    ConnectionGoneError,
    Hello,
    Kind,
    Message,
    ProtocolError,
)
from aiacc.bootstrap.provider import (
    GENERATIONS,
    Backoff,
    Deadline,
    check_payload,
    process_label,
)
from aiacc.bootstrap.rendezvous_server import RendezvousServer
from aiacc.bootstrap.rivals import process_space
from aiacc.bootstrap.seat import Seat
from aiacc.exceptions import BootstrapError

_RESET = struct.pack("ii", 1, 0)
#: Seconds of silence after which the kernel asks whether the other end still knows a connection.
_KEEPALIVE_S = 1
_CONNECT_ATTEMPT_S = 3.0
_LAST_QUESTION_S = 1.0


class RendezvousProvider:
    """Ranks that were told their number, and where rank 0 is.

    Rank 0 binds the port in its first `all_gather` and serves inside its calls, without a thread;
    the others connect, and keep the connection until `close`. See `provider.Provider`.
    """

    name = "rendezvous"

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        address: str,
        token: str,
        generation: int,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.generation = generation
        #: Whether the ranks share something that other jobs do not have.
        self.has_token = bool(token)
        self._round = 0
        self._closed = False
        host, port = split_address(address)
        self.meeting_host = host
        self._end: RendezvousServer | _Client
        if rank == 0:
            self._end = RendezvousServer(size, host, port, token)
        else:
            self._end = _Client(rank, size, host, port, token)

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank; see `provider.Provider.all_gather`."""
        check_payload(payload, self.name)
        if self._closed:
            raise BootstrapError("[bootstrap] rendezvous: closed (expected open); initialise again")
        try:
            generation, payloads = self._end.exchange(
                bytes(payload), self._round, self.generation, Deadline(timeout_s)
            )
        except BaseException:
            self.close()
            raise
        self._round += 1
        self.generation = generation
        GENERATIONS.catch_up(generation)
        return payloads

    def keep_seat(self) -> None:
        """On rank 0: let no other job gather at this address until `seat.release_all`."""
        if isinstance(self._end, RendezvousServer):
            self._end.keep_seat()

    def close(self) -> None:
        """Close the port or the connection."""
        self._closed = True
        self._end.close()


class _Client:
    """The end of every rank but 0."""

    def __init__(self, rank: int, size: int, host: str, port: int, token: str) -> None:
        self._rank = rank
        self._size = size
        self._host = host
        self._port = port
        self._address = join_address(host, port)
        self._token = token
        self._channel: Channel | None = None
        self._inbox: deque[Message] = deque()

    def exchange(
        self, payload: bytes, round_number: int, generation: int, deadline: Deadline
    ) -> tuple[int, list[bytes]]:
        """Send ``payload`` to rank 0; return the agreed generation and everybody's payloads."""
        channel = self._channel or self._introduce(generation, deadline)
        self._channel = channel
        channel.queue(Kind.PAYLOAD, frames.encode_payload(round_number, payload))
        try:
            message = self._next(channel, deadline)
            if message is None:
                channel.queue(Kind.IMPATIENT, b"")
                message = self._next(channel, Deadline(_LAST_QUESTION_S))
            if message is not None and message.kind == Kind.RESULT:
                return frames.decode_result(message.body, self._size)
        except ConnectionGoneError as error:
            raise BootstrapError(
                f"[bootstrap] rank {self._rank}: rank 0 at {self._address} left during the exchange"
                f" ({error}); look for its error or for what ended it"
            ) from error
        except ProtocolError as error:
            raise self._foreign(error) from error
        if message is None:
            raise BootstrapError(
                f"[bootstrap] rank {self._rank}: no result from rank 0 at {self._address} within "
                f"{deadline.timeout_s:g} s (expected all {self._size} ranks); rank 0 accepted the "
                "connection but does not answer: look whether it hangs"
            )
        raise BootstrapError(_text(message))

    def close(self) -> None:
        """Drop the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _introduce(self, generation: int, deadline: Deadline) -> Channel:
        """Connect to rank 0 and get in, trying again until the deadline."""
        backoff = Backoff()
        problem = "no time for an attempt"
        while not deadline.passed():
            try:
                channel = self._connect(deadline)
                try:
                    self._get_in(channel, generation, deadline)
                except BaseException:
                    channel.close()
                    raise
                return channel
            except ProtocolError as error:
                raise self._foreign(error) from error
            except (ConnectionGoneError, OSError) as error:
                if remedy := _exhaustion(error):
                    raise BootstrapError(
                        f"[bootstrap] rank {self._rank} cannot connect to rank 0 at "
                        f"{self._address}: {error}: {remedy}"
                    ) from error
                # Nobody there yet, or rank 0 is just closing its previous exchange.
                problem = str(error)
            backoff.pause(deadline)
        text = (
            f"[bootstrap] rank {self._rank}: rank 0 not reached at {self._address} within "
            f"{deadline.timeout_s:g} s: {problem}; check that rank 0 runs, that AIACC_ADDR names "
            "its host and a free port there, and that no firewall is between"
        )
        if Seat(f"{self._host}:{self._port}", self._token).is_taken():
            text += (
                ". A job that has gathered its ranks there runs on this host: if it is another, "
                "give each an AIACC_ADDR or an AIACC_TOKEN of its own; if it is this one, somebody "
                f"else came as rank {self._rank}"
            )
        raise BootstrapError(text)

    def _connect(self, deadline: Deadline) -> Channel:
        self._inbox.clear()
        patience_s = max(0.01, min(_CONNECT_ATTEMPT_S, deadline.left_s()))
        try:
            sock = socket.create_connection((self._host, self._port), timeout=patience_s)
        except UnicodeError as error:
            raise BootstrapError(
                f"[bootstrap] rank {self._rank}: {self._host!r} in AIACC_ADDR cannot be the name of"
                f" a host ({error}); set AIACC_ADDR to host:port of rank 0"
            ) from error
        try:
            # Equal when nobody listens, and the kernel chose that very port for this end.
            alone = sock.getsockname() == sock.getpeername()
            if not alone:
                # A listener that closes while a connection comes up may drop it without a word
                # (Linux): this end believes in it and would wait for the challenge for ever.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
                return Channel(sock, limit=frames.MAX_HELLO_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # free the port at once
        except OSError:
            sock.close()
            raise
        sock.close()
        raise ConnectionGoneError("nobody listens there")

    def _get_in(self, channel: Channel, generation: int, deadline: Deadline) -> None:
        challenge = self._expect(channel, Kind.CHALLENGE, deadline)
        hello = Hello(
            rank=self._rank,
            size=self._size,
            generation=generation,
            label=process_label(),
            challenge=os.urandom(frames.CHALLENGE_BYTES).hex(),
            pid=os.getpid(),
            space=process_space(),
        )
        channel.queue(Kind.HELLO, hello.encode(self._token, challenge))
        proof = self._expect(channel, Kind.WELCOME, deadline)
        if proof.decode(errors="replace") != frames.proof(self._token, b"", hello.challenge):
            raise BootstrapError(
                f"[bootstrap] rank {self._rank}: what answers at {self._address} does not know this"
                " job's AIACC_TOKEN; set the same value on every rank"
            )
        channel.allow(frames.result_limit(self._size))

    def _expect(self, channel: Channel, kind: Kind, deadline: Deadline) -> bytes:
        message = self._next(channel, deadline)
        if message is None:
            raise ConnectionGoneError(
                "something accepts the connection but does not answer (another program, or rank 0 "
                "is not initialising)"
            )
        if message.kind != kind:
            raise BootstrapError(_text(message))
        return message.body

    def _next(self, channel: Channel, deadline: Deadline) -> Message | None:
        """The next message, None when the deadline has passed."""
        poller = select.poll()
        while not self._inbox:
            try:
                channel.flush()
            except ConnectionGoneError:
                # Rank 0 may have said why before it closed.
                self._inbox += channel.receive()
                if not self._inbox:
                    raise
                break
            poller.register(channel, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
            if not poller.poll(deadline.left_s() * 1000):
                return None
            self._inbox += channel.receive()
        return self._inbox.popleft()

    def _foreign(self, error: ProtocolError) -> BootstrapError:
        return BootstrapError(
            f"[bootstrap] rank {self._rank}: what answers at {self._address} is not rank 0 of this "
            f"job: {error}; choose another port in AIACC_ADDR on every rank"
        )


def _exhaustion(error: Exception) -> str:
    """What to do if descriptors have run out; "" if that is not the problem."""
    return _core.exhaustion_remedy(getattr(error, "errno", None) or 0)


def _text(message: Message) -> str:
    if message.kind in (Kind.FAIL, Kind.REFUSE):
        return message.body.decode(errors="replace")
    return f"[bootstrap] rendezvous: unexpected {message.kind.name} from rank 0; this is a defect"
