"""The floor of a ring over TCP: the bytes of an all-reduce through plain sockets, not reduced."""

import socket
import threading
from collections.abc import Callable

import numpy as np
import torch.distributed as dist

from bench.collectives.measure import Contender

_FLOWS = 2
_CALL_BYTES = 256 * 1024
#: The congestion control that costs least on a loopback interface.
_CONGESTION_CONTROL = b"reno"


def ring(rank: int, size: int, total_bytes: int) -> Contender:
    """Send and receive what a ring all-reduce of ``total_bytes`` bytes would, without reducing it.

    Collective over torch's default group, which carries the addresses.
    """
    each = 2 * (size - 1) * total_bytes // size // _FLOWS
    following, preceding = _connect(rank, size)
    outgoing = [np.full(each, rank, np.uint8) for _ in range(_FLOWS)]
    incoming = [np.zeros(each, np.uint8) for _ in range(_FLOWS)]
    work: list[Callable[[], None]] = [
        lambda flow=flow: _send(following[flow], memoryview(outgoing[flow]))  # type: ignore[misc]
        for flow in range(_FLOWS)
    ]
    work += [
        lambda flow=flow: _receive(preceding[flow], memoryview(incoming[flow]))  # type: ignore[misc]
        for flow in range(_FLOWS)
    ]

    def run() -> None:
        threads = [threading.Thread(target=part) for part in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def prepare() -> None:
        for data in incoming:
            data.fill(255)

    def check() -> None:
        for data in incoming:
            assert (data == (rank - 1) % size).all(), "bytes of another rank"

    return Contender("sockets", run, prepare, check=check)


def _connect(rank: int, size: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Connections to the next rank and from the previous one."""
    with socket.create_server(("127.0.0.1", 0), backlog=_FLOWS) as listener:
        addresses: list[tuple[str, int]] = [("", 0)] * size
        dist.all_gather_object(addresses, listener.getsockname())
        following = [socket.create_connection(addresses[(rank + 1) % size]) for _ in range(_FLOWS)]
        preceding = [listener.accept()[0] for _ in range(_FLOWS)]
    for connection in following + preceding:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_CONTROL)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return following, preceding


def _send(connection: socket.socket, data: memoryview) -> None:
    for start in range(0, len(data), _CALL_BYTES):
        connection.sendall(data[start : start + _CALL_BYTES])


def _receive(connection: socket.socket, data: memoryview) -> None:
    at = 0
    while at < len(data):
        got = connection.recv_into(data[at : at + _CALL_BYTES])
        if got == 0:
            raise ConnectionError("the previous rank closed its connection")
        at += got
