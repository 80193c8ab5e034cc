"""Ranks of a rendezvous as threads, and strangers that speak its protocol by hand."""

import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from aiacc.bootstrap import frames
from aiacc.bootstrap.provider import PROTOCOL_VERSION
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.exceptions import BootstrapError

#: Runs one function per rank, each on its own thread.
Ranks = ThreadPoolExecutor
PATIENT_S = 30.0
#: Nobody comes meanwhile.
SHORT_S = 0.3
#: Who comes at once is there by then, on a busy machine too.
ENOUGH_S = 1.0


def provider(rank, size, port, *, token="", generation=0, host="127.0.0.1"):
    return RendezvousProvider(
        rank=rank, size=size, address=f"{host}:{port}", token=token, generation=generation
    )


def exchange(end, *payloads, timeout_s=PATIENT_S):
    """What a provider gathers for each payload; it is closed then."""
    try:
        return [end.all_gather(payload, timeout_s=timeout_s) for payload in payloads]
    finally:
        end.close()


def gather(rank, size, port, *, timeout_s=PATIENT_S, payload=None, **options):
    """The payloads of all ranks, "from 0" and so on, after one exchange."""
    mine = f"from {rank}".encode() if payload is None else payload
    return exchange(provider(rank, size, port, **options), mine, timeout_s=timeout_s)[0]


def outcome(future):
    """The result of a call, or the text of its BootstrapError."""
    try:
        return future.result(timeout=PATIENT_S)
    except BootstrapError as error:
        return str(error)


def run_all(calls):
    """Outcome of each call."""
    with Ranks(len(calls)) as ranks:
        return [outcome(future) for future in [ranks.submit(call) for call in calls]]


def dial(port):
    """A stranger's connection; waits for the port to open."""
    end = time.monotonic() + PATIENT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def message(kind, body, version=PROTOCOL_VERSION):
    return struct.pack("!4sHHI", b"AIRV", version, kind, len(body)) + body


class ByHand:
    """Somebody who connects to a port and speaks the protocol; closes the connection at the end."""

    def __init__(self, port):
        self.socket = dial(port)
        self.channel = frames.Channel(self.socket, limit=1 << 20)
        self._inbox: list[frames.Message] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def next(self) -> frames.Message:
        """The next message. Blocks until it has come."""
        while not self._inbox:
            assert select.select([self.channel], [], [], PATIENT_S)[0], "no message has come"
            self._inbox += self.channel.receive()
        return self._inbox.pop(0)

    def introduce(self, rank, size, *, token="", **changes) -> frames.Message:
        """Say who one is, with a right proof; the answer."""
        hello = frames.Hello(rank, size, 0, "by hand", "00")._replace(**changes)
        self.channel.queue(frames.Kind.HELLO, hello.encode(token, self.next().body))
        self.channel.flush()
        return self.next()
