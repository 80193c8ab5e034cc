"""By which address ranks reach each other: over many kinds of networks, and which one answers."""

import dataclasses
import itertools
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from aiacc.bootstrap.look import look, settle
from aiacc.bootstrap.provider import Deadline
from aiacc.bootstrap.reach import Candidate, Evidence, Look, Presence, Reach
from aiacc.exceptions import BootstrapError

LO = "lo 127.0.0.1/8"
DOCKER0 = "docker0 172.17.0.1/16"
CHAIN = "a 10.0.1.1/24 | a 10.0.1.2/24, b 10.0.2.2/24 | b 10.0.2.3/24"
FOUR_AND_SIX = "eth0 10.0.0.#/24, eth0 fd00::#/64"
NEAR = "eth0 fe80::1/64 meeting | ib0 fe80::9/64, enp3s0 fe80::2/64 meeting"


def addresses(text):
    """Candidates of a host that has "eth0 10.0.0.1/24 default, lo 127.0.0.1/8"."""
    found = []
    for one in filter(None, text.split(", ")):
        interface, address, *evidence = one.split()
        ip, _, prefix = address.partition("/")
        says = Evidence[evidence[0].upper()] if evidence else Evidence.NONE
        found.append(Candidate(interface, ip, int(prefix), says))
    return found


def reach(hosts, times=1, *, per_host=1, looks=(), name="node#"):
    """Of ranks on "eth0 10.0.0.1/24 | eth0 10.0.0.2/24", so many times; # is a host's number."""
    presences, names = [], []
    for number, text in enumerate(hosts.split(" | ") * times, 1):
        for _ in range(per_host):
            candidates = addresses(text.replace("#", str(number)))
            presences.append(Presence(f"stack{number}", 100 + len(presences), candidates))
            names.append(f"{name.replace('#', str(number - 1))}/boot")
    return Reach(presences, names, looks)


def seen(found, viewer):
    """Addresses without ports."""
    return [text.rpartition(":")[0].strip("[]") for text in found.seen_by(viewer)]


#: (addresses of the hosts, how often, what every rank sees of each host, or each rank in turn)
NETWORKS = [
    (f"{DOCKER0}, eth0 10.0.0.#/24, {LO}", 2, "10.0.0.1 10.0.0.2"),
    (f"{DOCKER0}, eth0 10.0.0.#/24 | eth0 10.0.0.#/24", 1, "10.0.0.1 10.0.0.2"),
    # Some engines number their bridges by host.
    ("docker0 172.17.#.1/16, br-3f 172.18.0.#/16, eth0 10.#.0.1/24", 2, "10.1.0.1 10.2.0.1"),
    ("eth0 10.#.0.1/24, eth1 192.168.5.#/24", 2, "192.168.5.1 192.168.5.2"),
    # Each host has a cable to the next.
    (CHAIN, 1, [*["10.0.1.1 10.0.1.2 10.0.2.3"] * 2, "10.0.1.1 10.0.2.2 10.0.2.3"]),
    # The way to the meeting goes before a shared network.
    ("eth0 10.0.0.#/24, eth1 192.168.5.#/24 meeting", 2, "192.168.5.1 192.168.5.2"),
    # As on Google's cloud: default routes, and no shared network.
    (f"{DOCKER0}, tun0 100.64.#.1/32, ens4 10.8.0.#/32 default", 2, "10.8.0.1 10.8.0.2"),
    # Pods of an overlay, and nodes beneath it.
    ("eth0 10.244.#.7/24 default", 2, "10.244.1.7 10.244.2.7"),
    ("cni0 10.4.#.1/24, flannel.1 10.4.#.0/32, ens5 10.0.#.9/24", 2, "10.0.1.9 10.0.2.9"),
    ("kube-ipvs0 10.96.0.1/32, ens5 10.0.#.9/24", 2, "10.0.1.9 10.0.2.9"),
    ("bond0 10.0.0.#/24 | bond1 10.0.0.#/24", 1, "10.0.0.1 10.0.0.2"),
    # Routing to the host.
    (f"lo 10.255.0.#/32 meeting, {LO}", 2, "10.255.0.1 10.255.0.2"),
    (f"eth0 2001:db8::#/64, {LO}", 2, "2001:db8::1 2001:db8::2"),
    # Each pair uses a kind that both have.
    (
        f"{FOUR_AND_SIX} | {FOUR_AND_SIX} | eth0 fd00::#/64",
        1,
        ["10.0.0.1 10.0.0.2 fd00::3"] * 2 + ["fd00::1 fd00::2 fd00::3"],
    ),
    (f"eth0 10.0.0.#/24 | {FOUR_AND_SIX}", 1, "10.0.0.1 10.0.0.2"),
    (f"{FOUR_AND_SIX} meeting", 2, "fd00::1 fd00::2"),
    # Link-local addresses have the scope of who connects.
    (NEAR, 1, ["fe80::1 fe80::2%eth0", "fe80::1%enp3s0 fe80::2"]),
    ("a fe80::a#/64, b fe80::b#/64", 2, ["fe80::a1 fe80::a2%a", "fe80::a1%a fe80::a2"]),
]


@pytest.mark.parametrize(("hosts", "times", "expected"), NETWORKS)
def test_how_ranks_of_several_hosts_reach_each_other(hosts, times, expected):
    found = reach(hosts, times)
    size = len(found.seen_by(0))
    of_rank = [expected] * size if isinstance(expected, str) else expected
    assert [" ".join(seen(found, viewer)) for viewer in range(size)] == of_rank


@pytest.mark.parametrize(
    ("host", "ranks", "address"),
    [
        (f"eth0 10.0.0.1/24, {LO}", 3, "127.0.0.1"),
        ("lo ::1/128", 2, "::1"),
        # A chosen interface keeps it from loopback.
        ("eth0 10.0.0.1/24", 2, "10.0.0.1"),
    ],
)
def test_how_ranks_of_one_host_reach_each_other(host, ranks, address):
    found = reach(host, per_host=ranks)
    assert seen(found, 1) == [address] * ranks
    assert (f"meet at {address}" in found.explanation(0)) == (address != "10.0.0.1")


def test_ports_follow_addresses():
    found = reach(f"{DOCKER0}, eth0 10.0.0.#/24, {LO}", 2, per_host=2)
    assert found.seen_by(3) == ("10.0.0.1:100", "10.0.0.1:101", "10.0.0.2:102", "10.0.0.2:103")
    assert reach("eth0 fd00::#/64", 2).seen_by(0) == ("[fd00::1]:100", "[fd00::2]:101")
    assert reach(NEAR).seen_by(0)[1] == "[fe80::2%eth0]:101"
    together = reach("a fe80::a#/64, b fe80::b#/64", 2, per_host=2)
    assert together.seen_by(1)[0] == "[fe80::a1%a]:100"


def test_the_host_of_rank_0_has_the_address_that_the_others_resolve():
    """Debian maps a host's own name to 127.0.1.1, so it does not know itself."""
    zero = addresses("eth0 10.0.0.1/24 default, eth1 192.168.5.1/24")
    one = addresses("eth0 10.0.0.2/24 default, eth1 192.168.5.2/24 meeting")
    presences = [Presence("a", 1, zero, []), Presence("b", 2, one, ["192.168.5.1"])]
    found = Reach(presences, ["a", "b"])
    assert found.seen_by(1) == ("192.168.5.1:1", "192.168.5.2:2")
    assert "192.168.5.1 (eth1): it is on the way to where the ranks meet" in found.explanation(0)


def test_why_others_reach_a_rank_at_an_address():
    shared = reach(f"{DOCKER0}, eth0 10.0.0.#/24, {LO}", 3)
    assert "10.0.0.2 (eth0): it is in a network that both hosts have" in shared.explanation(1)
    chain = reach(CHAIN)
    assert "at 10.0.1.2 (a)" in chain.explanation(1)
    assert "at 10.0.2.2 (b)" in chain.explanation(1)


def test_a_network_of_every_host_s_own_that_looks_like_a_shared_one():
    # Their numbers are 1 to 3; the first host's ranks see that one does not answer.
    hosts = "nat0 172.29.0.#/16 default, eth0 10.0.0.#/24"
    first = reach(hosts, 3, per_host=2)
    assert first.unclear() == {4: 0, 0: 2, 2: 4}
    assert first.ways(0, 2) == [("172.29.0.2", "172.29.0.2", 102), ("10.0.0.2", "10.0.0.2", 102)]
    looks = [Look(), Look(), Look(["10.0.0.3"], ["172.29.0.3"]), *[Look()] * 3]
    found = reach(hosts, 3, per_host=2, looks=looks)
    assert seen(found, 0)[::2] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_what_has_answered_counts_but_not_for_those_who_are_elsewhere():
    looks = [Look(["10.0.2.1"], ["172.29.2.5"]), Look(["10.0.1.1"], ["172.29.1.5"])]
    found = reach("nat0 172.29.#.5/24 default, ib0 10.0.#.1/24", 2, looks=looks)
    assert seen(found, 0) == ["10.0.1.1", "10.0.2.1"]
    assert "10.0.2.1 (ib0): it answered another host" in found.explanation(1)
    looks = [Look(["10.0.1.2"], ["10.0.2.2"]), Look(["10.0.2.3"]), Look(["10.0.1.1"])]
    found = reach(CHAIN.replace("2/24 |", "2/24 default |"), looks=looks)
    assert seen(found, 0)[1] == "10.0.1.2"
    assert seen(found, 2)[1] == "10.0.2.2"


@pytest.mark.parametrize(
    ("hosts", "times", "ranks", "unclear"),
    [
        ("a 10.0.0.#/24 meeting, b 10.1.#.1/24", 2, 1, {}),
        (f"{DOCKER0}, eth0 10.0.0.1/24 | eth0 10.0.0.2/24", 1, 1, {1: 0}),
        (f"eth0 10.0.0.#/24, {DOCKER0}, {LO}", 2, 1, {}),
        (f"a 10.0.0.1/24, b 10.1.0.1/24, {LO}", 1, 3, {}),
    ],
)
def test_nobody_looks_where_it_is_clear(hosts, times, ranks, unclear):
    assert reach(hosts, times, per_host=ranks).unclear() == unclear


def test_neither_containers_of_a_host_nor_clones_of_a_machine_share_loopback():
    found = reach(f"eth0 172.17.0.#/16, {LO}", 2, name="same")
    assert seen(found, 0) == ["172.17.0.1", "172.17.0.2"]
    # Clones may have the same number of their boot, by which stacks are told apart.
    for text, found in ((f"eth0 10.0.0.#/24, {LO}", "10.0.0.#"), (LO, "127.0.0.1")):
        presences = [Presence("same", n, addresses(text.replace("#", str(n)))) for n in (1, 2)]
        expected = tuple(f"{found.replace('#', str(n))}:{n}" for n in (1, 2))
        assert Reach(presences, ["a", "b"]).seen_by(0) == expected


#: (addresses of the hosts, how often, ranks of a host, texts of the error)
NOTHING_FITS = [
    (
        f"{DOCKER0}, {LO} | {DOCKER0}, {LO} | {DOCKER0}, eth0 10.0.0.1/24",
        1,
        1,
        [
            "ranks 0 and 1 have no addresses",
            "node0 (rank 0): docker0 172.17.0.1/16 (another host has it, too), lo 127.0.0.1/8 "
            "(loopback);",
            "node2 (rank 2)",
            "eth0 10.0.0.1/24",
            "set AIACC_IFACE",
        ],
    ),
    ("", 1, 2, ["ranks 0 and 1 ", "node0 (rank 0): none"]),
    (f"eth0 10.0.0.1/24 | {FOUR_AND_SIX} | eth0 fd00::2/64", 1, 1, ["of the same kind"]),
    ("eth0 fe80::1/64 | eth0 fd00::2/64", 1, 1, ["ranks 0 and 1"]),
    (DOCKER0, 1000, 1, ["and 984 more hosts"]),
]


@pytest.mark.parametrize(("hosts", "times", "ranks", "texts"), NOTHING_FITS)
def test_hosts_without_a_way_are_an_error_that_lists_addresses(hosts, times, ranks, texts):
    with pytest.raises(BootstrapError) as raised:
        reach(hosts, times, per_host=ranks)
    assert all(text in str(raised.value) for text in texts), str(raised.value)


def test_a_thousand_hosts_are_no_matter():
    own = [f"10.0.{n // 250}.{n % 250}" for n in range(1000)]
    found = reach(" | ".join(f"{DOCKER0}, eth0 {address}/16, {LO}" for address in own))
    assert seen(found, 999) == own
    presence = Presence("s" * 47, 40000, addresses(f"{DOCKER0}, eth0 {own[9]}/16, {LO}"), own[:1])
    text = json.dumps(dataclasses.asdict(presence))
    assert len(text) < 300, "per rank, in a table that every rank gets"


def test_every_pair_connects_to_an_address_that_its_owner_has_and_no_other_host():
    """All small topologies of some interfaces, and who is where in them."""
    kinds = [
        DOCKER0,
        "eth0 10.0.0.#/24",
        "eth0 10.#.0.1/24, eth1 10.0.0.#/24",
        "eth0 fd00::#/64",
        f"{FOUR_AND_SIX}, {DOCKER0}",
        LO,
    ]
    fitting = 0
    for picks in itertools.product(kinds, repeat=3):
        hosts = [addresses(text.replace("#", str(n + 1))) for n, text in enumerate(picks)]
        try:
            found = reach(" | ".join(picks))
        except BootstrapError:
            continue
        fitting += 1
        for viewer in range(3):
            for owner, address in enumerate(seen(found, viewer)):
                assert address in [one.address for one in hosts[owner]]
                others = [one.address for n, host in enumerate(hosts) if n != owner for one in host]
                assert address not in others
                assert not address.startswith("127.")
                assert (":" in address) in {":" in one.address for one in hosts[viewer]}
    assert fitting > 20


@pytest.fixture
def port_of():
    """By what happens there. A mute one answers as little as a host that is not there."""
    here = ("127.0.0.1", 0)
    with (
        socket.create_server(here) as answering,
        socket.create_server(here) as refusing,
        socket.create_server(here, backlog=0) as mute,
        socket.create_connection(mute.getsockname()),  # so that its queue is full
    ):
        listeners = {"answering": answering, "refusing": refusing, "mute": mute}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        refusing.close()
        yield ports


@pytest.mark.parametrize(
    ("ports", "patience_s", "expected"),
    [
        # The likeliest is enough; one that refuses is not waited for, a silent one is given up.
        (["answering", "mute"], 60.0, Look(["way 0"])),
        (["refusing", "answering"], 60.0, Look(["way 1"], ["way 0"])),
        (["mute", "answering"], 0.2, Look(["way 1"], ["way 0"])),
        (["mute", "refusing"], 0.2, Look()),
        ([], 60.0, Look()),
    ],
)
def test_which_of_several_addresses_answers(ports, patience_s, expected, port_of):
    ways = [(f"way {number}", "127.0.0.1", port_of[port]) for number, port in enumerate(ports)]
    assert look(ways, Deadline(patience_s)) == expected


#: Two hosts with two networks each; only the second has a listener.
HOSTS = [
    Presence(f"stack{n}", port, addresses(f"nat0 10.1.0.{n}/24 default, eth0 10.2.0.{n}/24"))
    for n, port in ((1, 0), (2, 7))
]


def _settle(presences, lie=None):
    """What ranks that are threads decide; all say `lie` instead of what they should."""
    barrier, rows = threading.Barrier(len(presences)), [b""] * len(presences)
    hosts = [f"host{rank}" for rank in range(len(presences))]

    def of_rank(rank):
        def all_gather(payload, *, timeout_s):
            rows[rank] = payload if lie is None else lie
            barrier.wait(timeout_s)
            return list(rows)

        provider = SimpleNamespace(rank=rank, all_gather=all_gather)
        return settle(provider, presences, hosts, timeout_s=30)

    with ThreadPoolExecutor(len(presences)) as threads:
        return list(threads.map(of_rank, range(len(presences))))


def test_all_ranks_decide_alike_from_what_one_has_found(monkeypatch):
    def found(ways, patience):
        assert [host for _, host, _ in ways] == ["10.1.0.2", "10.2.0.2"]
        assert patience.left_s() > 0
        return Look(["10.2.0.2"], ["10.1.0.2"])

    monkeypatch.setattr("aiacc.bootstrap.look.look", found)
    for reach in _settle(HOSTS):
        assert reach.seen_by(0) == ("10.2.0.1:0", "10.2.0.2:7")


def test_what_one_rank_cannot_say_or_use_is_an_error_of_all(monkeypatch):
    monkeypatch.setattr("aiacc.bootstrap.look.look", lambda ways, patience: Look())
    for lie in (b"", b"[]", b'{"silent": [1]}', b'{"loud": []}'):
        with pytest.raises(BootstrapError, match="install the same aiacc"):
            _settle(HOSTS, lie)
    presences = [Presence("a", 1, addresses(DOCKER0)), Presence("b", problem="AIACC_IFACE=x names")]
    with pytest.raises(BootstrapError, match=r"rank 1: AIACC_IFACE=x"):
        Reach(presences, ["a", "b"])
