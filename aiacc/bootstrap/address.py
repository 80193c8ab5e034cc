"""Addresses of the rendezvous: parsing, binding, and who holds a port that is taken."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import time
from pathlib import Path

from aiacc.exceptions import BootstrapError

_BIND_PATIENCE_S = 1.0


def split_address(text: str) -> tuple[str, int]:
    """Split "host:port", IPv6 hosts in brackets. Raises BootstrapError."""
    host, colon, port_text = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    if not colon or not host or (":" in host) != bracketed or not 1 <= port <= 65535:
        raise BootstrapError(
            f"[bootstrap] AIACC_ADDR={text!r} (expected host:port of rank 0 with a port from 1 to "
            "65535, IPv6 hosts in brackets); set the same value on every rank"
        )
    return host, port


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Bind the rendezvous port on this host. Raises BootstrapError.

    An address is bound as such where it is local; a name is bound on all interfaces, because it
    may mean something else to the other hosts (Debian maps a host's own name to 127.0.1.1).
    """
    give_up = time.monotonic() + _BIND_PATIENCE_S
    while True:
        try:
            return _listen_once(host, port, backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BootstrapError(
                    f"[bootstrap] rank 0 cannot listen on {host}:{port}: {error.strerror}; set "
                    "AIACC_ADDR to an address of rank 0's host and a port that it may use"
                ) from error
            owner = port_owner(port)
            # Without a listener, the port is only held for a moment by an outgoing connection.
            if owner or time.monotonic() > give_up:
                raise BootstrapError(
                    f"[bootstrap] rank 0 cannot listen on {host}:{port}: the port is taken by "
                    f"{owner or 'a connection of another process'}; end that process or choose "
                    "another port in AIACC_ADDR on every rank"
                ) from error
        time.sleep(0.02)


def _listen_once(host: str, port: int, backlog: int) -> socket.socket:
    literal = _literal(host)
    if literal is not None:
        family = socket.AF_INET6 if literal.version == 6 else socket.AF_INET
        try:
            return socket.create_server((str(literal), port), family=family, backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port), backlog=backlog)


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def port_owner(port: int) -> str:
    """The process that listens on ``port`` of this host, "" if nobody does."""
    inode = _listening_inode(port)
    if not inode:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        name = (process / "comm").read_text().strip()
                        return f"process {process.name} ({name})"
    return "a process of another user or container"


def _listening_inode(port: int) -> str:
    listening = "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == listening and int(fields[1].rpartition(":")[2], 16) == port:
                    return fields[9]
    return ""
