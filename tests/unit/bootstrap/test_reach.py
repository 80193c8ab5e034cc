"""By which address ranks reach each other: a pure decision over many kinds of networks."""

import dataclasses
import json

import pytest

from aiacc.bootstrap.reach import Candidate, Evidence, Look, Presence, Reach
from aiacc.exceptions import BootstrapError

LO = Candidate("lo", "127.0.0.1", 8)
DOCKER0 = Candidate("docker0", "172.17.0.1", 16)


def on(interface, address, evidence=Evidence.NONE):
    text, _, prefix = address.partition("/")
    return Candidate(interface, text, int(prefix), evidence)


def reach(*hosts, targets=(), per_host=1, names=None, looks=()):
    """Of a job with ranks on some hosts, given by their candidates; ports count from 100."""
    presences, host_names = [], []
    for number, candidates in enumerate(hosts):
        for _ in range(per_host):
            port = 100 + len(presences)
            presences.append(Presence(f"stack{number}", port, list(candidates), list(targets)))
            host_names.append(f"{names[number] if names else f'node{number}'}/boot")
    return Reach(presences, host_names, looks)


def seen(found, viewer):
    """Addresses without ports."""
    return [text.rpartition(":")[0].strip("[]") for text in found.seen_by(viewer)]


def test_docker0_before_eth0_on_every_host():
    hosts = [[DOCKER0, on("eth0", f"10.0.0.{n}/24"), LO] for n in (1, 2, 3)]
    found = reach(*hosts, per_host=2)
    assert found.seen_by(3) == (
        *("10.0.0.1:100", "10.0.0.1:101"),
        *("10.0.0.2:102", "10.0.0.2:103"),
        *("10.0.0.3:104", "10.0.0.3:105"),
    )
    assert "10.0.0.2 (eth0): it is in a network that both hosts have" in found.explanation(3)


def test_a_bridge_that_only_one_host_has():
    found = reach([DOCKER0, on("eth0", "10.0.0.1/24")], [on("eth0", "10.0.0.2/24")])
    assert seen(found, 1) == ["10.0.0.1", "10.0.0.2"]


def test_bridges_of_one_network_that_differ_lead_nowhere():
    """Some engines number their bridges by host."""
    hosts = [
        [
            on("docker0", f"172.17.{n}.1/16"),
            on("br-3fa9", f"172.18.0.{n}/16"),
            on("eth0", f"10.{n}.0.1/24", Evidence.DEFAULT),
        ]
        for n in (1, 2)
    ]
    assert seen(reach(*hosts), 0) == ["10.1.0.1", "10.2.0.1"]


def test_two_interfaces_of_which_one_is_shared():
    hosts = [[on("eth0", f"10.{n}.0.1/24"), on("eth1", f"192.168.5.{n}/24")] for n in (1, 2)]
    assert seen(reach(*hosts), 0) == ["192.168.5.1", "192.168.5.2"]


def test_every_pair_has_its_network():
    """A chain of hosts, each with a cable to the next."""
    found = reach(
        [on("a", "10.0.1.1/24")],
        [on("a", "10.0.1.2/24"), on("b", "10.0.2.2/24")],
        [on("b", "10.0.2.3/24")],
    )
    assert seen(found, 0)[1] == "10.0.1.2"
    assert seen(found, 2)[1] == "10.0.2.2"
    assert "at 10.0.1.2 (a)" in found.explanation(1)
    assert "at 10.0.2.2 (b)" in found.explanation(1)


def test_the_way_to_the_meeting_goes_before_a_shared_network():
    hosts = [
        [on("eth0", f"10.0.0.{n}/24"), on("eth1", f"192.168.5.{n}/24", Evidence.MEETING)]
        for n in (1, 2)
    ]
    assert seen(reach(*hosts), 0) == ["192.168.5.1", "192.168.5.2"]


def test_the_host_of_rank_0_has_the_address_that_the_others_resolve():
    """Debian maps a host's own name to 127.0.1.1, so it does not know itself."""
    zero = [on("eth0", "10.0.0.1/24", Evidence.DEFAULT), on("eth1", "192.168.5.1/24")]
    one = [on("eth0", "10.0.0.2/24", Evidence.DEFAULT), on("eth1", "192.168.5.2/24", 2)]
    presences = [Presence("a", 1, zero, []), Presence("b", 2, one, ["192.168.5.1"])]
    found = Reach(presences, ["a", "b"])
    assert found.seen_by(1) == ("192.168.5.1:1", "192.168.5.2:2")
    assert "192.168.5.1 (eth1): it is on the way to where the ranks meet" in found.explanation(0)


def test_without_a_shared_prefix_the_default_route_decides():
    """As on Google's cloud."""
    hosts = [
        [DOCKER0, on("tun0", f"100.64.{n}.1/32"), on("ens4", f"10.128.0.{n}/32", Evidence.DEFAULT)]
        for n in (1, 2, 3)
    ]
    assert seen(reach(*hosts), 1) == ["10.128.0.1", "10.128.0.2", "10.128.0.3"]


def test_pods_of_an_overlay_and_nodes_beneath_it():
    pods = [[on("eth0", f"10.244.{n}.7/24", Evidence.DEFAULT)] for n in (1, 2)]
    assert seen(reach(*pods), 0) == ["10.244.1.7", "10.244.2.7"]
    nodes = [
        [
            on("cni0", f"10.244.{n}.1/24"),
            on("flannel.1", f"10.244.{n}.0/32"),
            on("kube-ipvs0", "10.96.0.1/32"),
            on("ens5", f"10.0.{n}.9/24"),
        ]
        for n in (1, 2)
    ]
    assert seen(reach(*nodes), 0) == ["10.0.1.9", "10.0.2.9"]


def test_bonded_interfaces_and_an_address_on_the_loopback_interface():
    assert seen(reach([on("bond0", "10.0.0.1/24")], [on("bond1", "10.0.0.2/24")]), 0) == [
        "10.0.0.1",
        "10.0.0.2",
    ]
    hosts = [[on("lo", f"10.255.0.{n}/32", Evidence.MEETING), LO] for n in (1, 2)]
    assert seen(reach(*hosts), 0) == ["10.255.0.1", "10.255.0.2"], "routing to the host"


def test_a_network_of_every_host_s_own_that_looks_like_a_shared_one():
    hosts = [
        [on("nat0", f"172.29.0.{n}/16", Evidence.DEFAULT), on("eth0", f"10.0.0.{n}/24")]
        for n in (2, 3, 4)
    ]
    first = reach(*hosts, per_host=2)
    assert first.unclear() == {4: 0, 0: 2, 2: 4}
    assert first.ways(0, 2) == [("172.29.0.3", "172.29.0.3", 102), ("10.0.0.3", "10.0.0.3", 102)]
    looks = [Look(), Look(), Look(["10.0.0.4"], ["172.29.0.4"]), *[Look()] * 3]
    found = reach(*hosts, per_host=2, looks=looks)
    assert seen(found, 0)[::2] == ["10.0.0.2", "10.0.0.3", "10.0.0.4"]


def test_a_default_route_that_leads_away_from_the_other_hosts():
    hosts = [
        [on("nat0", f"172.29.{n}.5/24", Evidence.DEFAULT), on("ib0", f"10.0.{n}.1/24")]
        for n in (1, 2)
    ]
    looks = [Look(["10.0.2.1"], ["172.29.2.5"]), Look(["10.0.1.1"], ["172.29.1.5"])]
    found = reach(*hosts, looks=looks)
    assert seen(found, 0) == ["10.0.1.1", "10.0.2.1"]
    assert "10.0.2.1 (ib0): it answered another host" in found.explanation(1)


def test_nobody_looks_where_it_is_clear():
    way = [[on("a", f"10.0.0.{n}/24", Evidence.MEETING), on("b", f"10.1.{n}.1/24")] for n in (1, 2)]
    assert reach(*way).unclear() == {}
    assert reach([DOCKER0, on("eth0", "10.0.0.1/24")], [on("eth0", "10.0.0.2/24")]).unclear() == {
        1: 0
    }
    assert reach(*[[on("eth0", f"10.0.0.{n}/24"), DOCKER0, LO] for n in (1, 2)]).unclear() == {}
    assert reach([on("a", "10.0.0.1/24"), on("b", "10.1.0.1/24"), LO], per_host=3).unclear() == {}


def test_who_is_not_in_a_network_says_nothing_about_those_who_are():
    """A chain of hosts, each with a cable to the next."""
    looks = [Look(["10.0.1.2"]), Look(["10.0.2.3"]), Look(["10.0.1.1"])]
    looks[0] = Look(["10.0.1.2"], ["10.0.2.2"])
    found = reach(
        [on("a", "10.0.1.1/24")],
        [on("a", "10.0.1.2/24"), on("b", "10.0.2.2/24", Evidence.DEFAULT)],
        [on("b", "10.0.2.3/24")],
        looks=looks,
    )
    assert seen(found, 0)[1] == "10.0.1.2"
    assert seen(found, 2)[1] == "10.0.2.2"


def test_ipv6_only():
    hosts = [[on("eth0", f"2001:db8::{n}/64"), LO] for n in (1, 2)]
    assert reach(*hosts).seen_by(0) == ("[2001:db8::1]:100", "[2001:db8::2]:101")


def test_each_pair_uses_a_kind_that_both_have():
    both = [[on("eth0", f"10.0.0.{n}/24"), on("eth0", f"fd00::{n}/64")] for n in (1, 2)]
    found = reach(*both, [on("eth0", "fd00::3/64")])
    assert seen(found, 0) == ["10.0.0.1", "10.0.0.2", "fd00::3"]
    assert seen(found, 2) == ["fd00::1", "fd00::2", "fd00::3"]


def test_a_meeting_in_ipv6_prefers_it():
    hosts = [
        [on("eth0", f"10.0.0.{n}/24"), on("eth0", f"fd00::{n}/64", Evidence.MEETING)]
        for n in (1, 2)
    ]
    assert seen(reach(*hosts), 0) == ["fd00::1", "fd00::2"]


def test_link_local_addresses_have_the_scope_of_who_connects():
    one = [on("eth0", "fe80::1/64", Evidence.MEETING)]
    other = [on("ib0", "fe80::9/64"), on("enp3s0", "fe80::2/64", Evidence.MEETING)]
    found = reach(one, other)
    assert seen(found, 0)[1] == "fe80::2%eth0"
    assert seen(found, 1)[0] == "fe80::1%enp3s0"
    assert found.seen_by(0)[1] == "[fe80::2%eth0]:101"
    alike = [[on("a", f"fe80::a{n}/64"), on("b", f"fe80::b{n}/64")] for n in (1, 2)]
    assert seen(reach(*alike), 0)[1] == "fe80::a2%a"
    together = reach(*alike, per_host=2)
    assert seen(together, 1)[0] == "fe80::a1%a"


def test_loopback_if_all_ranks_are_on_one_host():
    found = reach([on("eth0", "10.0.0.1/24"), LO], per_host=3)
    assert seen(found, 1) == ["127.0.0.1"] * 3
    assert "meet at 127.0.0.1" in found.explanation(0)
    assert seen(reach([on("lo", "::1/128")], per_host=2), 0) == ["::1", "::1"]


def test_a_chosen_interface_keeps_one_host_from_loopback():
    assert seen(reach([on("eth0", "10.0.0.1/24")], per_host=2), 0) == ["10.0.0.1"] * 2


def test_containers_of_one_host_do_not_share_loopback():
    hosts = [[on("eth0", f"172.17.0.{n}/16"), LO] for n in (2, 3)]
    assert seen(reach(*hosts, names=["same", "same"]), 0) == ["172.17.0.2", "172.17.0.3"]


def test_clones_of_a_running_machine_do_not_share_loopback():
    """They may have the same number of their boot, by which stacks are told apart."""
    presences = [Presence("same", n, [on("eth0", f"10.0.0.{n}/24"), LO]) for n in (1, 2)]
    assert Reach(presences, ["a", "b"]).seen_by(0) == ("10.0.0.1:1", "10.0.0.2:2")
    lonely = [Presence("same", n, [LO]) for n in (1, 2)]
    assert Reach(lonely, ["a", "b"]).seen_by(0) == ("127.0.0.1:1", "127.0.0.1:2")


def test_loopback_alone_is_an_error_that_lists_every_hosts_addresses():
    with pytest.raises(BootstrapError) as raised:
        reach([DOCKER0, LO], [DOCKER0, LO], [DOCKER0, on("eth0", "10.0.0.1/24")])
    text = str(raised.value)
    assert "ranks 0 and 1 have no addresses" in text
    assert "node0 (rank 0): docker0 172.17.0.1/16 (another host has it, too), lo 127.0.0.1/8 (loo"
    assert "docker0 172.17.0.1/16 (another host has it, too), lo 127.0.0.1/8 (loopback)" in text
    assert "node2 (rank 2)" in text
    assert "eth0 10.0.0.1/24" in text
    assert "set AIACC_IFACE" in text


def test_no_address_at_all():
    with pytest.raises(BootstrapError, match=r"ranks 0 and 1 .*node0 \(rank 0\): none"):
        reach([], per_host=2)


def test_hosts_without_a_common_kind_of_address():
    four, six = [on("eth0", "10.0.0.1/24")], [on("eth0", "fd00::2/64")]
    both = [on("eth0", "10.0.0.3/24"), on("eth0", "fd00::3/64")]
    with pytest.raises(BootstrapError, match="ranks 0 and 2 have no addresses of the same kind"):
        reach(four, both, six)
    near = [on("eth0", "fe80::1/64")]
    with pytest.raises(BootstrapError, match="ranks 0 and 1"):
        reach(near, six)
    assert seen(reach(four, both), 0) == ["10.0.0.1", "10.0.0.3"]


def test_a_rank_whose_setting_fits_nothing_is_an_error_of_all():
    presences = [Presence("a", 1, [DOCKER0]), Presence("b", 2, problem="AIACC_IFACE=x names")]
    with pytest.raises(BootstrapError, match=r"rank 1: AIACC_IFACE=x"):
        Reach(presences, ["a", "b"])


def test_many_hosts_are_listed_in_part():
    with pytest.raises(BootstrapError, match="and 984 more hosts"):
        reach(*[[DOCKER0]] * 1000)


def test_a_thousand_hosts_are_no_matter():
    hosts = [[DOCKER0, on("eth0", f"10.0.{n // 250}.{n % 250}/16"), LO] for n in range(1000)]
    found = reach(*hosts)
    assert seen(found, 999) == [f"10.0.{n // 250}.{n % 250}" for n in range(1000)]
    text = json.dumps(dataclasses.asdict(Presence("s" * 47, 40000, hosts[0], ["10.0.0.0"])))
    assert len(text) < 300, "per rank, in a table that every rank gets"


def test_every_pair_connects_to_an_address_that_its_owner_has_and_no_other_host():
    """All small topologies of some interfaces, and who is where in them."""
    kinds = [
        [DOCKER0],
        [on("eth0", "10.0.0.{n}/24")],
        [on("eth0", "10.{n}.0.1/24"), on("eth1", "10.0.0.{n}/24")],
        [on("eth0", "fd00::{n}/64")],
        [on("eth0", "10.0.0.{n}/24"), on("eth0", "fd00::{n}/64"), DOCKER0],
        [LO],
    ]
    fitting = 0
    for number in range(len(kinds) ** 3):
        picks = [kinds[number // len(kinds) ** place % len(kinds)] for place in range(3)]
        hosts = [
            [one._replace(address=one.address.format(n=n + 1)) for one in pick]
            for n, pick in enumerate(picks)
        ]
        try:
            found = reach(*hosts)
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
