"""Addresses: read, written and bound, and which ones of a host the others get to know."""

import socket

import pytest

from aiacc import _core
from aiacc.bootstrap import address as addressing
from aiacc.bootstrap import interfaces
from aiacc.bootstrap.reach import Evidence, Presence
from aiacc.exceptions import BootstrapError


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:70000", "host:x", "::1:5", "h:-1", "h:²"]
)
def test_bad_address(text):
    with pytest.raises(BootstrapError, match="AIACC_ADDR="):
        addressing.split_address(text)
    with pytest.raises(BootstrapError, match=r"expected one, as \[fe80::1%eth0\]:80"):
        addressing.split_address("[fe80::1]:80")


def test_addresses():
    assert addressing.split_address("node7:1234") == ("node7", 1234)
    assert addressing.split_address("[::1]:1") == ("::1", 1)
    assert addressing.split_address("[2001:db8::1]:29500") == ("2001:db8::1", 29500)
    assert addressing.split_address("[fe80::1%eth0]:2") == ("fe80::1%eth0", 2)
    assert addressing.join_address("fe80::1%eth0", 2) == "[fe80::1%eth0]:2"
    assert addressing.join_address("::ffff:10.0.0.1", 2) == "10.0.0.1:2"
    assert addressing.join_address("node7", 2) == "node7:2"


#: A link-local address of this host with its interface, if it has one.
_LINK_LOCAL = [
    f"{address}%{interface}"
    for interface, address, _, running in _core.interface_addresses()
    if running and address.startswith("fe80:")
]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", *_LINK_LOCAL[:1]])
def test_an_address_is_bound_as_such(port, host):
    if not any(one[1] == host.partition("%")[0] for one in _core.interface_addresses()):
        pytest.skip("this host has no such address")
    with addressing.listen(host, port, 1) as server:
        assert server.getsockname()[0] == host.partition("%")[0]
        with socket.create_connection((host, port), 5):
            pass


def test_a_name_is_bound_on_every_interface(port):
    # The name may be 127.0.1.1 to this host, and its real address to the others.
    with (
        addressing.listen(socket.gethostname(), port, 1),
        socket.create_connection(("127.0.0.1", port), 5),
    ):
        pass
    with pytest.raises(BootstrapError, match=r"cannot listen on \[fe80::1%nosuch0\]"):
        addressing.listen("fe80::1%nosuch0", port, 1)


def test_a_port_whose_owner_is_just_closing_it_is_bound(port, monkeypatch):
    """The table of listeners is read, the owner closes, and then nobody has that socket."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def nobody_has_it(_):
            inode = addressing._listening_inode(port)
            server.close()
            monkeypatch.undo()
            return addressing._process_with(inode)

        monkeypatch.setattr("aiacc.bootstrap.address.port_owner", nobody_has_it)
        with addressing.listen("127.0.0.1", port, backlog=1) as mine:
            assert mine.getsockname()[1] == port


OWN = [
    interfaces.OwnAddress("lo", "127.0.0.1", 8, True),
    interfaces.OwnAddress("docker0", "172.17.0.1", 16, True),
    interfaces.OwnAddress("virbr0", "192.168.122.1", 24, False),
    interfaces.OwnAddress("eth0", "10.0.0.1", 24, True),
    interfaces.OwnAddress("eth1", "10.1.0.1", 24, True),
    interfaces.OwnAddress("eth10", "10.2.0.1", 24, True),
    interfaces.OwnAddress("lo", "::1", 128, True),
    interfaces.OwnAddress("eth0", "2001:db8::1", 64, True),
    interfaces.OwnAddress("eth0", "fe80::1", 64, True),
    interfaces.OwnAddress("eth1", "fe80::1", 64, True),
]
LONELY = [one for one in OWN if one.address in ("::1", "fe80::1")]


def addresses(found):
    return [one.address for one in found]


@pytest.mark.parametrize(
    ("own", "wanted", "found"),
    [
        # What is up, and one loopback address.
        (OWN, "", "172.17.0.1 10.0.0.1 10.1.0.1 10.2.0.1 2001:db8::1 127.0.0.1"),
        # Link-local addresses if there are no others.
        (LONELY, "", "fe80::1 fe80::1 ::1"),
        # A chosen interface has no loopback beside it.
        (OWN, "eth0", "10.0.0.1 2001:db8::1"),
        (OWN, "lo", "127.0.0.1"),
    ],
)
def test_which_addresses_others_get_to_know(own, wanted, found):
    assert " ".join(addresses(interfaces.choose_candidates(own, wanted))) == found


def test_what_the_routes_use_comes_first():
    found = interfaces.choose_candidates(
        OWN, "", meeting=["10.2.0.1"], default=["10.0.0.1", "2001:db8::1"]
    )
    assert [(one.address, one.evidence) for one in found[:3]] == [
        ("10.2.0.1", Evidence.MEETING),
        ("10.0.0.1", Evidence.DEFAULT),
        ("2001:db8::1", Evidence.DEFAULT),
    ]
    found = interfaces.choose_candidates(OWN, "", meeting=["fe80::1%eth1"])
    assert found[0] == ("eth1", "fe80::1", 64, Evidence.MEETING)
    assert addresses(found).count("fe80::1") == 1


def test_a_host_with_very_many_addresses_tells_the_best():
    many = [interfaces.OwnAddress(f"eth{n}", f"10.0.{n}.1", 24, True) for n in range(200)]
    found = interfaces.choose_candidates([*many, OWN[0]], "", default=["10.0.199.1"])
    assert addresses(found)[0] == "10.0.199.1"
    assert addresses(found)[-1] == "127.0.0.1"
    assert len(found) == interfaces.MOST_CANDIDATES + 1


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("eth1", {"eth1"}),
        ("eth", {"eth0", "eth1", "eth10"}),
        ("eth1,docker", {"eth1", "docker0"}),
        ("10.0.0.1", {"eth0"}),
        ("[2001:DB8:0::1]", {"eth0"}),
        ("fe80::1", {"eth0", "eth1"}),
        ("fe80::1%eth1", {"eth1"}),
        ("^docker,lo,virbr", {"eth0", "eth1", "eth10"}),
        ("^docker0, eth1", {"lo", "virbr0", "eth0", "eth10"}),
        ("", {"lo", "docker0", "virbr0", "eth0", "eth1", "eth10"}),
        ("nosuch0", set()),
    ],
)
def test_what_the_setting_names(wanted, names):
    assert {one.interface for one in interfaces.named_addresses(OWN, wanted)} == names


@pytest.mark.parametrize("wanted", ["nosuch0", "192.0.2.9", "virbr0"])
def test_a_setting_that_fits_nothing_lists_what_there_is(wanted):
    with pytest.raises(ValueError, match=f"AIACC_IFACE={wanted} names no interface") as raised:
        interfaces.choose_candidates(OWN, wanted)
    assert "docker0 172.17.0.1, virbr0 192.168.122.1 (down), eth0 10.0.0.1" in str(raised.value)


def test_this_host_tells_its_addresses_or_what_is_wrong_with_the_setting():
    presence = interfaces.observe("127.0.0.1", "")
    assert "127.0.0.1" in addresses(presence.candidates)
    assert presence.targets == [], "loopback tells other hosts nothing"
    assert presence.stack == interfaces.observe("", "").stack
    listener = _core.Listener(interfaces.listened_at(presence))
    assert listener.port > 0
    listener.close()
    wrong = interfaces.observe("", "nosuch0")
    assert "AIACC_IFACE=nosuch0" in wrong.problem, "kept for the others to see"
    assert wrong.candidates == []


def test_which_own_address_leads_to_a_host():
    (route,) = interfaces.routes_to("127.0.0.1")
    assert route == ("127.0.0.1", "127.0.0.1")
    assert interfaces.routes_to("no.such.host.invalid") == []
    assert interfaces.routes_to("bad..name") == []
    (one,) = interfaces.choose_candidates([OWN[-1]], "")
    assert interfaces.listened_at(Presence("", 0, [one])) == ["fe80::1%eth1"], "with its scope"
