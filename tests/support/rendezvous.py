"""Ranks of a rendezvous as threads, and strangers that speak its protocol by hand."""

import contextlib
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from aiacc.bootstrap import frames
from aiacc.bootstrap.provider import PROTOCOL_VERSION
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.exceptions import BootstrapError

PATIENT_S = 20.0
SHORT_S = 0.3


def descriptors():
    """What this process has open, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone by now
            found[entry.name] = str(entry.readlink())
    return found


def provider(rank, size, port, *, token="", generation=0, host="127.0.0.1"):
    return RendezvousProvider(
        rank=rank, size=size, address=f"{host}:{port}", token=token, generation=generation
    )


class Ranks:
    """Runs one function per rank, each on its own thread."""

    def __init__(self, count):
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown()

    def start(self, function, *args) -> Future:
        return self._pool.submit(function, *args)


def gather(rank, size, port, *, timeout_s=PATIENT_S, payload=None, **options):
    end = provider(rank, size, port, **options)
    try:
        body = f"from {rank}".encode() if payload is None else payload
        return end.all_gather(body, timeout_s=timeout_s)
    finally:
        end.close()


def outcome(future):
    try:
        return future.result(timeout=PATIENT_S)
    except BootstrapError as error:
        return str(error)


def run_all(calls):
    """Outcome of each call: its result, or the text of its BootstrapError."""
    with Ranks(len(calls)) as ranks:
        return [outcome(future) for future in [ranks.start(call) for call in calls]]


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


def message(kind, body):
    return struct.pack("!4sHHI", b"AIRV", PROTOCOL_VERSION, kind, len(body)) + body


def introduce(sock, *, rank, size, token=""):
    """Speak the protocol by hand; the reply after WELCOME."""
    channel = frames.Channel(sock.dup(), limit=1 << 20)
    try:
        challenge = wait_message(channel).body
        hello = frames.Hello(rank, size, 0, "by hand", "00")
        channel.queue(frames.Kind.HELLO, hello.encode(token, challenge))
        channel.flush()
        reply = wait_message(channel)
        return wait_message(channel) if reply.kind == frames.Kind.WELCOME else reply
    finally:
        channel.close()


_early: dict = {}


def wait_message(channel):
    queue = _early.setdefault(id(channel), [])
    end = time.monotonic() + PATIENT_S
    while not queue and time.monotonic() < end:
        queue += channel.receive()
        time.sleep(0.001)
    return queue.pop(0)
