"""Addresses of the rendezvous: parsing, binding, and who holds a port that is taken."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import time
from pathlib import Path
from typing import Any

from aiacc.exceptions import BootstrapError

_BIND_PATIENCE_S = 1.0
_STRANGER = "a process of another user or container"


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
            "65535, IPv6 hosts in brackets, as [2001:db8::1]:29500); set the same value on every "
            "rank"
        )
    if bracketed and host.lower().startswith("fe80:") and "%" not in host:
        raise BootstrapError(
            f"[bootstrap] AIACC_ADDR={text!r} has a link-local address without its interface "
            f"(expected one, as [{host}%eth0]:{port}); add it, or use another address"
        )
    return host, port


def join_address(host: str, port: int) -> str:
    """Inverse of `split_address`; an IPv4 address that an IPv6 socket shows is IPv4 again."""
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Bind the rendezvous port on this host. Raises BootstrapError.

    An address is bound as such where it is local; a name is bound on all interfaces, because it
    may mean something else to the other hosts (Debian maps a host's own name to 127.0.1.1).
    """
    where = join_address(host, port)
    give_up = time.monotonic() + _BIND_PATIENCE_S
    while True:
        try:
            return _listen_once(host, port, backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BootstrapError(
                    f"[bootstrap] rank 0 cannot listen on {where}: {error.strerror}; set "
                    "AIACC_ADDR to an address of rank 0's host and a port that it may use"
                ) from error
            owner = port_owner(port)
            # Without a listener, the port is only held for a moment by an outgoing connection; and
            # the owner of one that has just closed is not found.
            if owner not in ("", _STRANGER) or time.monotonic() > give_up:
                raise BootstrapError(
                    f"[bootstrap] rank 0 cannot listen on {where}: the port is taken by "
                    f"{owner or 'a connection of another process'}; end that process or choose "
                    "another port in AIACC_ADDR on every rank"
                ) from error
        time.sleep(0.02)


def _listen_once(host: str, port: int, backlog: int) -> socket.socket:
    literal = _literal(host, port)
    if literal is not None:
        family, address = literal
        try:
            return socket.create_server(address, family=family, backlog=backlog)
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


def _literal(host: str, port: int) -> tuple[socket.AddressFamily, Any] | None:
    """What to bind for an address, with the scope of a link-local one; None for a name."""
    if host == "localhost":
        host = "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    )
    return found[0][0], found[0][4]


def port_owner(port: int) -> str:
    """The process that listens on ``port`` of this host, "" if nobody does."""
    inode = _listening_inode(port)
    return _process_with(inode) if inode else ""


def _process_with(inode: str) -> str:
    """The process that has this socket."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        name = (process / "comm").read_text().strip()
                        return f"process {process.name} ({name})"
    return _STRANGER


def _listening_inode(port: int) -> str:
    listening = "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == listening and int(fields[1].rpartition(":")[2], 16) == port:
                    return fields[9]
    return ""
