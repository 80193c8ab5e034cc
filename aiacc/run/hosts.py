"""Hosts and how many ranks each takes."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from aiacc import _core

#: Descriptors of each rank that is started here, and of what starts them.
_FILES_OF_RANK, _OWN_FILES = 3, 32
#: More for each core are hardly meant; the largest jobs of our tests have fewer.
_MANY_PER_CORE = 64


@dataclass(frozen=True)
class Host:
    """A machine and the number of ranks that it takes."""

    name: str
    slots: int

    @property
    def is_ipv6(self) -> bool:
        """Whether the name is an IPv6 address."""
        return _is_ipv6(self.name)

    def is_local(self) -> bool:
        """Whether the name says that this is the machine itself."""
        try:
            address = ipaddress.ip_address(self.name)
        except ValueError:
            return _is_own_name(self.name.lower())
        own = {text.partition("%")[0] for _, text, *_ in _core.interface_addresses()}
        return address.is_loopback or str(address).partition("%")[0] in own


def parse_hosts(text: str) -> list[Host]:
    """Read ``h1:2,h2:4``, the form of ``--hosts``; a host without a number takes one rank.

    Raises:
        ValueError: The text is not of that form, or names a host twice.
    """
    return _checked(_parse_host(part.strip()) for part in text.split(","))


def parse_hostfile(text: str) -> list[Host]:
    """Read the lines ``h1 slots=2`` (or ``h1:2``) of a host file; ``#`` starts a comment.

    Raises:
        ValueError: A line is not of that form, or no host is named, or one twice.
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return _checked(_parse_line(line) for line in lines if line)


def take(hosts: list[Host], ranks: int) -> list[Host]:
    """The hosts that ``ranks`` ranks fill in order, with the slots used of each.

    Raises:
        ValueError: The hosts have too few slots.
    """
    taken: list[Host] = []
    left = ranks
    for host in hosts:
        if left == 0:
            break
        taken.append(Host(host.name, min(host.slots, left)))
        left -= taken[-1].slots
    if left > 0:
        raise ValueError(
            f"{ranks} ranks were asked for, but the hosts have {ranks - left} slots (expected at "
            "least as many); give them more slots, as in --hosts h1:2,h2:2"
        )
    return taken


def _parse_host(text: str) -> Host:
    name, colon, slots = text.rpartition(":")
    if text.endswith("]") or _is_ipv6(text):
        colon = ""
    if not colon:
        name, slots = text, "1"
    return _host(name, slots, text)


def _parse_line(line: str) -> Host:
    match = re.fullmatch(r"(\S+)\s+slots\s*=\s*(\S+)(\s+max[-_]slots\s*=\s*\S+)?", line)
    return _host(match[1], match[2], line) if match else _parse_host(line)


def _host(name: str, slots: str, text: str) -> Host:
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
        known = _is_ipv6(name)
    else:
        known = re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None or _is_ipv6(name)
    if not known or not slots.isdecimal() or int(slots) < 1:
        raise ValueError(
            f"host {text!r} (expected name or name:slots, with at least one slot; IPv6 "
            "addresses with slots in brackets, as [2001:db8::1]:2)"
        )
    return Host(name, int(slots))


def word_on(ranks: int, cores: int, files: int) -> str:
    """What to say of so many ranks on this machine, perhaps nothing.

    Args:
        ranks: Their number.
        cores: That they share.
        files: That this process may open; 0: any number.

    Raises:
        ValueError: It could not open what they need.
    """
    room = (files - _OWN_FILES) // _FILES_OF_RANK
    if files and ranks > room:
        raise ValueError(
            f"-np {ranks} on this machine (expected at most {max(0, room)}, by {files} open "
            f"files, {_OWN_FILES} and {_FILES_OF_RANK} for each rank); raise that (ulimit -n), "
            "start fewer ranks, or use more hosts (--mpi)"
        )
    if ranks > _MANY_PER_CORE * cores:
        return f"-np {ranks} on {cores} cores: {ranks // cores} ranks share each of them"
    return ""


def _is_own_name(name: str) -> bool:
    """Whether this machine calls itself so, in short or in full."""
    host = socket.gethostname().lower()
    if name in ("localhost", host, host.partition(".")[0]):
        return True
    # Asks the DNS, so only where that may make a difference.
    return name.partition(".")[0] == host.partition(".")[0] and name == socket.getfqdn().lower()


def _is_ipv6(name: str) -> bool:
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True


def _checked(hosts: Iterable[Host]) -> list[Host]:
    found = list(hosts)
    names = [host.name for host in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"host {twice[0]!r} is named twice (expected once, with all its slots)")
    if not found:
        raise ValueError("no host is named (expected at least one, as in h1:2,h2:2)")
    return found
