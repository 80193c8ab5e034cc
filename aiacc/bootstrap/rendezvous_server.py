"""Rank 0's end of the rendezvous: collects a payload of every rank and returns all to all."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
from dataclasses import dataclass, field

from aiacc import _core
from aiacc.bootstrap import frames, rivals
from aiacc.bootstrap.address import join_address, listen
from aiacc.bootstrap.frames import Channel, ConnectionGoneError, Hello, Kind, Message, ProtocolError
from aiacc.bootstrap.processes import open_pidfd
from aiacc.bootstrap.provider import Deadline, process_label, rank_list, size_mismatch
from aiacc.bootstrap.seat import Seat
from aiacc.exceptions import BootstrapError

_log = logging.getLogger("aiacc.bootstrap")

#: A connection that has not said who it is after this time is dropped.
_HELLO_PATIENCE_S = 5.0
#: How long ranks that come late are still told why the exchange failed.
_FAREWELL_S = 1.0
#: How long a complete job waits for processes that may be ranks of another one to come or to end.
_RIVAL_PATIENCE_S = 10.0
#: Connections of strangers that are held at once, beside one per rank.
_STRANGERS = 128


@dataclass(eq=False)
class _Peer:
    """One accepted connection."""

    channel: Channel
    address: str
    challenge: bytes
    patience: Deadline
    hello: Hello | None = None  # None until it has proved to be a rank
    payloads: dict[int, bytes] = field(default_factory=dict)
    leaving: bool = False  # it has been told why; wait for it to close

    def __str__(self) -> str:
        if self.hello is None:
            return self.address
        return f"rank {self.hello.rank} ({self.hello.label}, {self.address})"


class _FailedError(Exception):
    """The exchange cannot succeed; the text is for every rank."""


class RendezvousServer:
    """Serves inside `exchange`, on the caller's thread; between calls connections wait.

    Threads: one.
    """

    def __init__(self, size: int, host: str, port: int, token: str) -> None:
        self._size = size
        self._host = host
        self._port = port
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._seat = Seat(f"{host}:{port}", token)
        self._peers: dict[_Peer, None] = {}  # in the order of their arrival
        self._ranks: dict[int, _Peer] = {}
        self._round = 0
        self._generation = 0
        self._refused: list[str] = []
        self._failure = ""
        self._told: set[int] = set()
        #: Who may still come as a rank of another job, by a descriptor that tells of its end.
        self._expected: dict[int, rivals.Rival] = {}
        self._hurry = False

    def exchange(
        self, payload: bytes, round_number: int, generation: int, deadline: Deadline
    ) -> tuple[int, list[bytes]]:
        """Contribute rank 0's ``payload``; return the generation and everybody's payloads."""
        self._round, self._generation = round_number, generation
        try:
            # Who was in a job before may follow a rank 0 that has yet to leave that job.
            self._open(deadline if generation else Deadline(0.0))
            while missing := self._missing():
                if deadline.passed():
                    raise _FailedError(self._timeout_text(0, deadline.timeout_s, missing))
                self._serve(deadline)
            if not (self._token or round_number or generation):
                self._await_rivals(deadline)
        except _FailedError as failure:
            self._say_farewell(str(failure), wait_for_others=not deadline.passed())
            raise BootstrapError(str(failure)) from None
        peers = [self._ranks[rank] for rank in range(1, self._size)]
        generations = [peer.hello.generation for peer in peers if peer.hello is not None]
        generation = max([generation, *generations])
        payloads = [payload, *(peer.payloads.pop(round_number) for peer in peers)]
        self._deliver(peers, frames.encode_result(generation, payloads), deadline)
        return generation, payloads

    def keep_seat(self) -> None:
        """Let no other process of this host be rank 0 here until `seat.release_all`."""
        self._seat.keep()

    def close(self) -> None:
        """Close the port and every connection."""
        self._seat.close()
        for peer in list(self._peers):
            self._drop(peer)
        for descriptor in list(self._expected):
            self._no_longer_expected(descriptor)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._selector.close()

    def _open(self, patience: Deadline) -> None:
        while self._listener is None:
            self._listener = self._listen()
            if self._seat.take():
                break
            # A job that has gathered its ranks and lives. They must not find this process here.
            self._listener.close()
            self._listener = None
            holder = self._seat.wait_for(patience)
            if holder:
                raise BootstrapError(
                    f"[bootstrap] rank 0: {holder} is rank 0 of a running job at "
                    f"{self._host}:{self._port} (expected one job for each address); give each job "
                    "an AIACC_ADDR of its own, or an AIACC_TOKEN of its own, or end that process"
                )
        if not self._selector.get_map():
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            if self._seat.fileno() >= 0:
                self._selector.register(self._seat, selectors.EVENT_READ, self._meet_rivals)

    def _listen(self) -> socket.socket:
        try:
            return listen(self._host, self._port, backlog=self._size + _STRANGERS)
        except BootstrapError:
            self._seat.wait_for(Deadline(0.0))  # tells whoever gathers its ranks there now
            raise

    def _meet_rivals(self, _: socket.socket) -> None:
        for rival in self._seat.rivals():
            raise _FailedError(
                f"[bootstrap] rendezvous: rank 0 came twice: {process_label()} and {rival} of the "
                "same host (expected once); give each job an AIACC_ADDR of its own, or an "
                "AIACC_TOKEN of its own"
            )

    # Who may come as a rank of another job ---------------------------------------------------

    def _await_rivals(self, deadline: Deadline) -> None:
        """Stay open to processes that were started for this address; raise if one comes."""
        space = rivals.process_space()
        hellos = [peer.hello for peer in self._ranks.values() if peer.hello is not None]
        members = {os.getpid(), *(hello.pid for hello in hellos if hello.space == space)}
        for rival in rivals.find((self._host, self._port), members):
            with contextlib.suppress(OSError):  # it has ended
                descriptor = open_pidfd(rival.pid)
                self._expected[descriptor] = rival
                self._selector.register(descriptor, selectors.EVENT_READ, self._no_longer_expected)
        patience = Deadline(min(_RIVAL_PATIENCE_S, deadline.left_s() / 2))
        while self._expected and not self._hurry and not patience.passed():
            self._serve(patience)
        if self._expected:
            _log.warning(
                "[bootstrap] rendezvous: all %d ranks are here; %s of this host was started for %s,"
                " too, but did not come: if it belongs to another job, give each job an AIACC_ADDR "
                "or an AIACC_TOKEN of its own, as the two may be mixed; with an AIACC_TOKEN nobody "
                "is waited for",
                self._size,
                next(iter(self._expected.values())),
                join_address(self._host, self._port),
            )
        for descriptor in list(self._expected):
            self._no_longer_expected(descriptor)

    def _no_longer_expected(self, descriptor: int) -> None:
        del self._expected[descriptor]
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _missing(self) -> list[int]:
        return [
            rank
            for rank in range(1, self._size)
            if rank not in self._ranks or self._round not in self._ranks[rank].payloads
        ]

    # What happens on the sockets -------------------------------------------------------------

    def _serve(self, deadline: Deadline) -> None:
        """Wait for something to happen, and react to it."""
        passing = [peer for peer in self._peers if peer.hello is None or peer.leaving]
        wait_s = min([deadline.left_s(), *(peer.patience.left_s() for peer in passing)])
        for key, events in self._selector.select(wait_s):
            if not isinstance(key.data, _Peer):
                key.data(key.fileobj)
            elif key.data in self._peers:
                self._react(key.data, events)
        for peer in passing:
            if peer in self._peers and peer.patience.passed():
                if peer.leaving:
                    self._drop(peer)
                elif peer.hello is None:
                    self._refuse(peer, "it did not say who it is")

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            strangers = [peer for peer in self._peers if peer.hello is None]
            if strangers:
                self._drop(strangers[0])  # the listener is still readable: the next turn accepts
                return
            raise _FailedError(
                f"[bootstrap] rank 0 cannot accept connections: {error.strerror}: "
                f"{_core.exhaustion_remedy(error.errno or 0) or 'the system refuses them'}"
            ) from error
        peer = _Peer(
            channel=Channel(sock, limit=frames.MAX_HELLO_BYTES),
            address=join_address(address[0], address[1]),
            challenge=os.urandom(frames.CHALLENGE_BYTES),
            patience=Deadline(_HELLO_PATIENCE_S),
        )
        strangers = [other for other in self._peers if other.hello is None]
        if len(strangers) >= self._size + _STRANGERS:
            self._drop(strangers[0])
        self._peers[peer] = None
        self._selector.register(peer.channel, selectors.EVENT_READ, peer)
        self._send(peer, Kind.CHALLENGE, peer.challenge)

    def _react(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if not events & selectors.EVENT_READ:
                return
            if peer.leaving:
                peer.channel.discard()
                return
            for message in peer.channel.receive():
                if not peer.leaving:
                    self._handle(peer, message)
        except ConnectionGoneError as error:
            self._gone(peer, str(error))
        except ProtocolError as error:
            if peer.hello is not None:
                raise _FailedError(
                    f"[bootstrap] rendezvous: {peer} sent nonsense: {error}"
                ) from error
            self._refuse(peer, str(error))

    def _handle(self, peer: _Peer, message: Message) -> None:
        if peer.hello is None:
            if message.kind != Kind.HELLO:
                raise ProtocolError(f"it began with {message.kind.name}")
            hello, knows_token = Hello.decode(message.body, self._token, peer.challenge)
            if knows_token:
                self._admit(peer, hello)
            else:
                self._refuse(
                    peer,
                    f"wrong AIACC_TOKEN from rank {hello.rank} ({hello.label}); set the same "
                    "value on every rank",
                )
        elif message.kind == Kind.PAYLOAD:
            round_number, payload = frames.decode_payload(message.body)
            if round_number != self._round:
                raise _FailedError(
                    f"[bootstrap] rendezvous: {peer} is at exchange {round_number}, rank 0 at "
                    f"{self._round} (expected equal); every rank must initialise equally often"
                )
            peer.payloads[round_number] = payload
        elif message.kind == Kind.IMPATIENT and not self._missing():
            self._hurry = True
        elif message.kind == Kind.IMPATIENT:
            raise _FailedError(self._timeout_text(peer.hello.rank, None, self._missing()))
        else:
            raise ProtocolError(f"unexpected {message.kind.name}")

    def _admit(self, peer: _Peer, hello: Hello) -> None:
        if self._failure and hello.generation > self._generation:
            self._drop(peer)  # it belongs to the next attempt and will come again
            return
        peer.hello = hello
        self._send(peer, Kind.WELCOME, frames.proof(self._token, b"", hello.challenge).encode())
        peer.channel.allow(frames.MAX_PAYLOAD_MESSAGE_BYTES)
        if self._failure:
            self._tell_failure(peer)
            return
        known = self._ranks.get(hello.rank)
        self._ranks.setdefault(hello.rank, peer)
        if hello.size != self._size:
            raise _FailedError(size_mismatch(0, self._size, hello.rank, hello.size))
        if not 1 <= hello.rank < self._size:
            raise _FailedError(
                f"[bootstrap] rendezvous: {peer} has a rank that is out of range or taken by rank "
                f"0 ({process_label()}) (expected 1 to {self._size - 1}); give every process its "
                "own AIACC_RANK"
            )
        if known is not None:
            raise _FailedError(
                f"[bootstrap] rendezvous: rank {hello.rank} came twice: {known} and {peer} "
                "(expected once); give every process its own AIACC_RANK, and each job an "
                "AIACC_ADDR or an AIACC_TOKEN of its own"
            )

    # Sending and parting ---------------------------------------------------------------------

    def _send(self, peer: _Peer, kind: Kind, body: bytes) -> None:
        peer.channel.queue(kind, body)
        try:
            self._flush(peer)
        except ConnectionGoneError as error:
            self._gone(peer, str(error))

    def _flush(self, peer: _Peer) -> None:
        peer.channel.flush()
        write = selectors.EVENT_WRITE if peer.channel.unsent else 0
        self._selector.modify(peer.channel, selectors.EVENT_READ | write, peer)

    def _deliver(self, peers: list[_Peer], result: bytes, deadline: Deadline) -> None:
        """Send the result; a rank that is lost now will be missed by what comes next."""
        for peer in peers:
            peer.channel.queue(Kind.RESULT, result)
        poller = select.poll()
        waiting = {peer.channel.fileno(): peer for peer in peers}
        for descriptor in waiting:
            poller.register(descriptor, select.POLLOUT)
        while waiting and not deadline.passed():
            for descriptor, _ in poller.poll(deadline.left_s() * 1000):
                peer = waiting[descriptor]
                lost = ""
                try:
                    peer.channel.flush()
                except ConnectionGoneError as error:
                    lost = str(error)
                if lost or not peer.channel.unsent:
                    poller.unregister(descriptor)
                    del waiting[descriptor]
                if lost:
                    _log.warning("[bootstrap] rendezvous: %s left: %s", peer, lost)
                    self._drop(peer)

    def _refuse(self, peer: _Peer, why: str) -> None:
        """Turn one connection away; the others are not disturbed."""
        text = f"refused {peer.address}: {why}"
        _log.warning("[bootstrap] rendezvous: %s", text)
        self._refused = [*self._refused[-2:], text]
        self._part(peer, Kind.REFUSE, f"[bootstrap] rendezvous: rank 0 {text}")

    def _tell_failure(self, peer: _Peer) -> None:
        if peer.hello is not None:
            self._told.add(peer.hello.rank)
        self._part(peer, Kind.FAIL, self._failure)

    def _part(self, peer: _Peer, kind: Kind, text: str) -> None:
        # Closing at once would discard the text if the other end is still sending.
        peer.leaving = True
        peer.patience = Deadline(_FAREWELL_S)
        self._send(peer, kind, text.encode())
        peer.channel.finish_sending()

    def _say_farewell(self, text: str, *, wait_for_others: bool) -> None:
        """Tell every rank, also those that come within a moment, why there is no result."""
        self._failure = text
        for peer in list(self._peers):
            if peer.hello is not None:
                self._tell_failure(peer)
        others = set(range(1, self._size)) if wait_for_others else set()
        farewell = Deadline(_FAREWELL_S)
        while not farewell.passed():
            talking = any(peer.leaving and peer.hello for peer in self._peers)
            if not talking and others <= self._told and not self._expected:
                return
            with contextlib.suppress(_FailedError):  # the first reason is the one that counts
                self._serve(farewell)

    def _gone(self, peer: _Peer, why: str) -> None:
        self._drop(peer)
        if peer.hello is not None and not peer.leaving and not self._failure:
            raise _FailedError(
                f"[bootstrap] rendezvous: {peer} left during the exchange ({why}); look for its "
                "error or for what ended it"
            )

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer, None)
        if peer.hello is not None and self._ranks.get(peer.hello.rank) is peer:
            del self._ranks[peer.hello.rank]
        self._selector.unregister(peer.channel)
        peer.channel.close()

    def _timeout_text(self, viewer: int, timeout_s: float | None, missing: list[int]) -> str:
        within = "its time limit" if timeout_s is None else f"{timeout_s:g} s"
        text = (
            f"[bootstrap] rendezvous: {rank_list(missing)} of {self._size} did not come within "
            f"{within} of rank {viewer}; check that every rank was started and does initialise, "
            "and that AIACC_ADDR is the same and reachable on all of them"
        )
        if self._refused:
            text += f" (meanwhile {'; '.join(self._refused)})"
        return text
