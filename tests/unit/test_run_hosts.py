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
