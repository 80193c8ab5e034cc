"""Which addresses this host has, and which of them its routes would use."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiacc import _core
from aiacc.bootstrap.reach import Candidate, Evidence, Presence

#: Addresses of a host that the others get to know.
MOST_CANDIDATES = 16
#: Reserved for documentation, so that only a default route leads there.
_FAR = ("203.0.113.1", "2001:db8:ffff::1")
_DISCARD_PORT = 9


class OwnAddress(NamedTuple):
    """An address of this host, as `_core.interface_addresses` has it."""

    interface: str
    address: str
    prefix: int
    running: bool


class Route(NamedTuple):
    """What the kernel would do with a packet."""

    target: str
    #: With the scope of a link-local address.
    source: str


def observe(meeting_host: str, wanted: str) -> Presence:
    """This host's `Presence`, but for the port. Sends nothing.

    Args:
        meeting_host: Where the ranks meet, "" if that is not known.
        wanted: AIACC_IFACE.
    """
    own = [OwnAddress(*found) for found in _core.interface_addresses()]
    meeting = routes_to(meeting_host) if meeting_host else []
    try:
        candidates = choose_candidates(
            own,
            wanted,
            meeting=[route.source for route in meeting],
            default=[route.source for far in _FAR for route in routes_to(far)],
        )
    except ValueError as error:
        return Presence(stack=_stack(), problem=str(error))
    targets = dict.fromkeys(_unscoped(route.target) for route in meeting)
    return Presence(
        stack=_stack(),
        candidates=candidates,
        targets=[target for target in targets if not ipaddress.ip_address(target).is_loopback],
    )


def listened_at(presence: Presence) -> list[str]:
    """The addresses of its candidates, for `_core.Listener`."""
    return [
        f"{one.address}%{one.interface}" if _is_link_local_6(one.address) else one.address
        for one in presence.candidates
    ]


def routes_to(host: str) -> list[Route]:
    """The kernel's routes to all addresses of ``host``; none if it does not resolve."""
    found = []
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, target in socket.getaddrinfo(
            host, _DISCARD_PORT, type=socket.SOCK_DGRAM
        )[:MOST_CANDIDATES]:
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(target)  # UDP: only looks up the route
                found.append(Route(str(target[0]), _source(probe.getsockname())))
    return found


def _source(address: tuple[Any, ...]) -> str:
    scope = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{socket.if_indextoname(scope)}" if scope else str(address[0])


def choose_candidates(
    own: Sequence[OwnAddress],
    wanted: str,
    *,
    meeting: Collection[str] = (),
    default: Collection[str] = (),
) -> list[Candidate]:
    """The addresses to tell the others, those with evidence first. Pure.

    Link-local ones of IPv6 only if the ranks meet at one, or the host has nothing else.

    Args:
        own: All addresses of this host.
        wanted: AIACC_IFACE.
        meeting: Sources of what goes to where the ranks meet.
        default: Sources of what leaves by the default route.

    Raises:
        ValueError: ``wanted`` leaves no address.
    """
    running = [one for one in named_addresses(own, wanted) if one.running]
    if wanted and not running:
        raise ValueError(_no_such(own, wanted))
    weighed = [
        Candidate(one.interface, one.address, one.prefix, _evidence(one, meeting, default))
        for one in running
    ]
    loopback = [one for one in weighed if ipaddress.ip_address(one.address).is_loopback]
    if not wanted:
        first = [one for one in loopback if one.address == "127.0.0.1"]
        loopback = (first or loopback)[:1]
    others = [one for one in weighed if not ipaddress.ip_address(one.address).is_loopback]
    far = [one for one in others if not _is_link_local_6(one.address)]
    near = [one for one in others if _is_link_local_6(one.address)]
    kept = far + [one for one in near if one.evidence == Evidence.MEETING or not far]
    kept.sort(key=lambda one: -one.evidence)
    return kept[:MOST_CANDIDATES] + loopback[:1]


def named_addresses(own: Sequence[OwnAddress], wanted: str) -> list[OwnAddress]:
    """Those that AIACC_IFACE names; all if it is empty. Pure.

    A list of interfaces and addresses; ``^`` at its beginning: all but these. What is the name of
    no interface stands for all interfaces that begin like this.
    """
    text = wanted.strip()
    items = [item.strip().strip("[]") for item in text.removeprefix("^").split(",")]
    items = [item for item in items if item]
    if not items:
        return list(own)
    names = {one.interface for one in own}
    named = [one for one in own if any(_names(item, one, names) for item in items)]
    return [one for one in own if one not in named] if text.startswith("^") else named


def _names(item: str, one: OwnAddress, interfaces: Collection[str]) -> bool:
    text, _, scope = item.partition("%")
    try:
        same = ipaddress.ip_address(text) == ipaddress.ip_address(one.address)
        return same and scope in ("", one.interface)
    except ValueError:
        return one.interface == item if item in interfaces else one.interface.startswith(item)


def _no_such(own: Sequence[OwnAddress], wanted: str) -> str:
    known = ", ".join(
        f"{one.interface} {one.address}{'' if one.running else ' (down)'}" for one in own
    )
    return (
        f"AIACC_IFACE={wanted} names no interface that is up, and no address of one (this host has "
        f"{known or 'none'}); set it to one of these, or unset it"
    )


def _evidence(one: OwnAddress, meeting: Collection[str], default: Collection[str]) -> Evidence:
    names = {one.address, f"{one.address}%{one.interface}"}
    if _is_link_local_6(one.address):
        names = {f"{one.address}%{one.interface}"}  # several interfaces may have the same
    if not names.isdisjoint(meeting):
        return Evidence.MEETING
    return Evidence.NONE if names.isdisjoint(default) else Evidence.DEFAULT


def _is_link_local_6(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.version == 6 and parsed.is_link_local


def _unscoped(address: str) -> str:
    return address.partition("%")[0]


def _stack() -> str:
    """Name of this process's network stack: of a machine, or of a container on it."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - no link to resolve
    return f"{boot}/{namespace}"
