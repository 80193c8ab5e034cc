import pytest

from aiacc.run.hosts import Host, parse_hostfile, parse_hosts, take


def test_hosts():
    assert parse_hosts("h1:2,h2:4, h3") == [Host("h1", 2), Host("h2", 4), Host("h3", 1)]


def test_hostfile():
    text = "# cluster\nh1 slots=2\n\nh2 slots = 4 max_slots=8  # big\nh3:3\nh4\n"
    assert parse_hostfile(text) == [Host("h1", 2), Host("h2", 4), Host("h3", 3), Host("h4", 1)]


@pytest.mark.parametrize("text", ["", "h1:0", "h1:x", "h1:2,,h2", "h 1:2", "h1:2;rm -rf /", ":2"])
def test_bad_hosts_are_named(text):
    with pytest.raises(ValueError, match="expected"):
        parse_hosts(text)


def test_ipv6_hosts():
    hosts = "[2001:db8::1]:2,2001:db8::2,[fd00::3],[fe80::1%eth0]:4,::1"
    assert parse_hosts(hosts) == [
        Host("2001:db8::1", 2),
        Host("2001:db8::2", 1),
        Host("fd00::3", 1),
        Host("fe80::1%eth0", 4),
        Host("::1", 1),
    ]
    assert parse_hostfile("[fd00::1] slots=2\nfd00::2 slots=3\n[fd00::3]:4\nfd00::4\n") == [
        Host(f"fd00::{n}", slots) for n, slots in ((1, 2), (2, 3), (3, 4), (4, 1))
    ]
    assert Host("::1", 1).is_local()


@pytest.mark.parametrize("text", ["[2001:db8::1:2", "[h1]:2", "2001:db8:1:2", "h1:2:3", "[]:1"])
def test_hosts_that_are_neither_names_nor_addresses(text):
    with pytest.raises(ValueError, match=r"expected name or .* as \[2001:db8::1\]:2"):
        parse_hosts(text)


def test_host_named_twice():
    with pytest.raises(ValueError, match="'h1' is named twice"):
        parse_hosts("h1:2,h1:2")


def test_empty_hostfile():
    with pytest.raises(ValueError, match="no host is named"):
        parse_hostfile("# nothing\n")


def test_take_fills_hosts_in_order():
    hosts = [Host("h1", 2), Host("h2", 2), Host("h3", 2)]
    assert take(hosts, 3) == [Host("h1", 2), Host("h2", 1)]
    assert take(hosts, 6) == hosts
    with pytest.raises(ValueError, match=r"7 ranks .* 6 slots"):
        take(hosts, 7)
