"""By which address each rank reaches each other one: a pure decision from what all ranks say.

An address that hosts of different network stacks both have, such as that of a docker0, leads
nowhere and is never used; loopback only serves a job whose ranks are all on one host. Of the rest,
`_Score` says what speaks for an address, the strongest first.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from aiacc.bootstrap.address import join_address
from aiacc.bootstrap.untrusted import check_fields
from aiacc.exceptions import BootstrapError

#: Interfaces that join what runs inside a host, by the beginnings of their names.
_INSIDE = (
    *("docker", "br-", "virbr", "veth", "lxcbr", "lxdbr", "podman", "cni", "flannel", "cali"),
    *("tunl", "cilium", "vmnet", "vboxnet", "nerdctl", "kube-"),
)
_SHOWN_HOSTS = 16


class Evidence(IntEnum):
    """What a host's routes say about one of its addresses; part of the wire format."""

    NONE = 0
    #: It is the source of what leaves by the default route.
    DEFAULT = 1
    #: It is the source of what goes to where the ranks meet.
    MEETING = 2


class Candidate(NamedTuple):
    """An address of a host."""

    interface: str
    #: Without the scope of a link-local one.
    address: str
    #: Bits of the prefix.
    prefix: int
    #: An `Evidence`.
    evidence: int = Evidence.NONE


@dataclass(frozen=True)
class Presence:
    """Where a rank is in the network, and what it knows of where the ranks meet."""

    #: Equal for ranks that share the interfaces of one network stack.
    stack: str = ""
    #: Where its listener is, on every address.
    port: int = 0
    candidates: Sequence[Candidate] = field(default_factory=list)
    #: Addresses of where the ranks meet, as this rank resolves it.
    targets: Sequence[str] = field(default_factory=list)
    #: Why it has no candidates although its host has addresses; "" otherwise.
    problem: str = ""

    @staticmethod
    def from_fields(fields: Any) -> Presence:
        """Inverse of `dataclasses.asdict` and JSON. Raises ValueError, TypeError."""
        candidates = [Candidate(*one) for one in fields["candidates"]]
        for one in candidates:
            check_fields(Candidate, one._asdict())
            ipaddress.ip_interface(f"{one.address}/{one.prefix}")
        whole = {**fields, "candidates": candidates}
        check_fields(Presence, whole)
        presence = Presence(**whole)
        for target in presence.targets:
            ipaddress.ip_address(target.partition("%")[0])
        if not 0 <= presence.port < 1 << 16:
            raise ValueError(f"port is {presence.port}")
        return presence


@dataclass(frozen=True)
class Look:
    """What a rank has found out about the addresses of another one, see `Reach.unclear`."""

    answered: Sequence[str] = field(default_factory=list)
    #: Likelier ones that did not answer.
    silent: Sequence[str] = field(default_factory=list)


class _Score(NamedTuple):
    """What speaks for an address, in the order of weight."""

    meeting: bool
    not_silent: bool
    leaves_host: bool
    shared: bool
    answered: bool
    default: bool
    routable: bool
    ipv4: bool

    def reason(self) -> str:
        if self.meeting:
            return "it is on the way to where the ranks meet"
        if self.shared:
            return "it is in a network that both hosts have"
        if self.answered:
            return "it answered another host"
        return "it has the default route" if self.default else "nothing speaks for another one"


class Reach:
    """The decision. Every rank computes the same from the same presences.

    Args:
        presences: One per rank, in rank order.
        hosts: Name of the host of each rank, equal for ranks on the same host.
        looks: What each rank has found out; nothing yet if there are none.

    Raises:
        BootstrapError: Two ranks have no addresses by which one could reach the other.
    """

    def __init__(
        self, presences: Sequence[Presence], hosts: Sequence[str], looks: Sequence[Look] = ()
    ) -> None:
        self._presences = presences
        self._hosts = hosts
        for rank, presence in enumerate(presences):
            if presence.problem:
                raise BootstrapError(f"[bootstrap] rank {rank}: {presence.problem}")
        self._twice = _on_several_stacks(presences)
        self._targets = {target for presence in presences for target in presence.targets}
        self._usable = [
            [one for one in presence.candidates if self._is_usable(one)] for presence in presences
        ]
        self._kinds = [frozenset(_kind(one.address) for one in usable) for usable in self._usable]
        self._networks = [{_network(one) for one in usable} - {None} for usable in self._usable]
        self._answered = {address for look in looks for address in look.answered}
        self._silent = {address for look in looks for address in look.silent}
        #: Networks that each host has for itself, although their numbers are equal.
        self._inner = self._find_inner(looks)
        self._loopback = self._find_loopback()
        if not self._loopback:
            self._check()

    def seen_by(self, viewer: int) -> tuple[str, ...]:
        """Address and port by which ``viewer`` reaches each rank; its own as others see it."""
        return tuple(
            join_address(self._text(viewer, owner), presence.port)
            for owner, presence in enumerate(self._presences)
        )

    def unclear(self) -> dict[int, int]:
        """Which ranks must probe whose addresses, where none is known to answer: owners by viewer.

        One rank of every host looks at one of the next that has a listener.
        """
        viewers: dict[str, int] = {}
        owners: dict[str, int] = {}
        for rank, presence in enumerate(self._presences):
            viewers.setdefault(presence.stack, rank)
            if presence.port:
                owners.setdefault(presence.stack, rank)
        stacks = list(viewers)
        if self._loopback or len(stacks) == 1:
            return {}
        pairs = {
            viewers[stacks[number - 1]]: owners[stack]
            for number, stack in enumerate(stacks)
            if stack in owners
        }
        return {viewer: owner for viewer, owner in pairs.items() if self._is_unclear(viewer, owner)}

    def _is_unclear(self, viewer: int, owner: int) -> bool:
        options = self._options(viewer, owner)
        return len(options) > 1 and not self._score(viewer, options[0]).meeting

    def ways(self, viewer: int, owner: int) -> list[tuple[str, str, int]]:
        """All addresses by which ``viewer`` may reach ``owner``, the likeliest first.

        Of each the address, what ``viewer`` connects to, and the port.
        """
        port = self._presences[owner].port
        return [
            (one.address, self._scoped(viewer, owner, one), port)
            for one in self._options(viewer, owner)
        ]

    def explanation(self, rank: int) -> str:
        """By which addresses the others reach ``rank`` and why, for the log."""
        if self._loopback:
            return f"all ranks are on one host and meet at {self._loopback}"
        found: dict[str, None] = {}
        for viewer in self._others(rank) or [rank]:
            one = self._choose(viewer, rank)
            found[f"{one.address} ({one.interface}): {self._score(viewer, one).reason()}"] = None
        return f"other ranks reach rank {rank} at {'; at '.join(found)}"

    def _others(self, rank: int) -> list[int]:
        """Ranks of other network stacks."""
        stack = self._presences[rank].stack
        return [other for other, one in enumerate(self._presences) if one.stack != stack]

    def _is_usable(self, one: Candidate) -> bool:
        return not _parsed(one.address).is_loopback and one.address not in self._twice

    def _find_inner(self, looks: Sequence[Look]) -> set[str]:
        """Networks that a rank is in and could not reach an address of."""
        by_address = {one.address: one for usable in self._usable for one in usable}
        networks = {
            _network(by_address[address])
            for viewer, look in enumerate(looks)
            for address in look.silent
            if address in by_address and _network(by_address[address]) in self._networks[viewer]
        }
        return {network for network in networks if network is not None}

    def _find_loopback(self) -> str:
        """The loopback address that serves this job, "" if none does."""
        stacks = {presence.stack for presence in self._presences}
        lonely = not all(self._usable)
        # Machines that were cloned while they ran may share even the number of their boot.
        if len(stacks) > 1 or (len(set(self._hosts)) > 1 and not lonely):
            return ""
        own = [
            [one.address for one in presence.candidates if _parsed(one.address).is_loopback]
            for presence in self._presences
        ]
        return next((address for address in own[0] if all(address in have for have in own)), "")

    def _check(self) -> None:
        first: dict[frozenset[str], dict[str, int]] = {}
        for rank, kinds in enumerate(self._kinds):
            first.setdefault(kinds, {}).setdefault(self._presences[rank].stack, rank)
        for kinds, of_stack in first.items():
            for others, of_other in first.items():
                pairs = (
                    (rank, other)
                    for stack, rank in list(of_stack.items())[:2]
                    for other_stack, other in list(of_other.items())[:2]
                    if stack != other_stack
                )
                pair = None if kinds & others else next(pairs, None)
                if pair is not None:
                    raise BootstrapError(self._nothing_fits(*pair))
        if frozenset() in first:  # on the one host that there is
            raise BootstrapError(self._nothing_fits(0, 1))

    def _nothing_fits(self, rank: int, other: int) -> str:
        hosts: dict[str, str] = {}
        for number, presence in enumerate(self._presences):
            if presence.stack not in hosts:
                listed = ", ".join(self._described(one) for one in presence.candidates)
                hosts[presence.stack] = (
                    f"{self._hosts[number].partition('/')[0]} (rank {number}): {listed or 'none'}"
                )
        mine, theirs = self._presences[rank].stack, self._presences[other].stack
        order = list(dict.fromkeys([mine, theirs, *hosts]))
        shown = "; ".join(hosts[stack] for stack in order[:_SHOWN_HOSTS])
        more = f"; and {len(order) - _SHOWN_HOSTS} more hosts" if len(order) > _SHOWN_HOSTS else ""
        return (
            f"[bootstrap] ranks {rank} and {other} have no addresses of the same kind by which "
            f"one could reach the other (addresses of {shown}{more}); give the hosts addresses of "
            "one network, or set AIACC_IFACE on them to the interface that has one"
        )

    def _described(self, one: Candidate) -> str:
        why_not = ""
        if _parsed(one.address).is_loopback:
            why_not = " (loopback)"
        elif one.address in self._twice:
            why_not = " (another host has it, too)"
        return f"{one.interface} {one.address}/{one.prefix}{why_not}"

    def _options(self, viewer: int, owner: int) -> list[Candidate]:
        """The likeliest first."""
        options = self._usable[owner]
        if self._presences[viewer].stack != self._presences[owner].stack:
            options = [one for one in options if _kind(one.address) in self._kinds[viewer]]
        return sorted(options, key=lambda one: self._score(viewer, one), reverse=True)

    def _choose(self, viewer: int, owner: int) -> Candidate:
        return self._options(viewer, owner)[0]

    def _score(self, viewer: int, one: Candidate) -> _Score:
        network = _network(one)
        inner = network in self._inner
        shared = network in self._networks[viewer] and not inner
        return _Score(
            meeting=one.evidence == Evidence.MEETING or one.address in self._targets,
            # Whoever is not in its network says nothing about those who are.
            not_silent=not inner and (shared or one.address not in self._silent),
            leaves_host=not one.interface.startswith(_INSIDE),
            shared=shared,
            answered=one.address in self._answered,
            default=one.evidence == Evidence.DEFAULT,
            routable=not _parsed(one.address).is_link_local,
            ipv4=_parsed(one.address).version == 4,
        )

    def _text(self, viewer: int, owner: int) -> str:
        if self._loopback:
            return self._loopback
        if viewer == owner:
            viewer = next(iter(self._others(owner)), owner)
            return self._choose(viewer, owner).address
        return self._scoped(viewer, owner, self._choose(viewer, owner))

    def _scoped(self, viewer: int, owner: int, one: Candidate) -> str:
        """An address as ``viewer`` connects to it."""
        if _kind(one.address) != "link":
            return one.address
        return f"{one.address}%{self._scope(viewer, owner, one)}"

    def _scope(self, viewer: int, owner: int, one: Candidate) -> str:
        """The viewer's interface that leads to a link-local address."""
        if self._presences[viewer].stack == self._presences[owner].stack:
            return one.interface
        mine = [own for own in self._usable[viewer] if _kind(own.address) == "link"]
        return max(mine, key=lambda own: (own.evidence, own.interface == one.interface)).interface


def _on_several_stacks(presences: Iterable[Presence]) -> set[str]:
    """Addresses that more than one network stack has."""
    owner: dict[str, str] = {}
    twice: set[str] = set()
    for presence in presences:
        for one in presence.candidates:
            if owner.setdefault(one.address, presence.stack) != presence.stack:
                twice.add(one.address)
    return twice


@functools.lru_cache(maxsize=1 << 14)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address)


def _kind(address: str) -> str:
    """What an address of another host has to be like for this one's host to reach it."""
    parsed = _parsed(address)
    if parsed.version == 4:
        return "4"
    return "link" if parsed.is_link_local else "6"


@functools.lru_cache(maxsize=1 << 14)
def _network(one: Candidate) -> str | None:
    """The network of an address, None if nobody else can be in it or it is not one network."""
    network = ipaddress.ip_interface(f"{one.address}/{one.prefix}").network
    return None if network.num_addresses == 1 or _kind(one.address) == "link" else str(network)
