import pytest

from aiacc.run.hosts import Host, parse_hostfile, parse_hosts, take


def test_hosts_and_their_slots():
    assert parse_hosts("h1:2,h2:4, h3") == [Host("h1", 2), Host("h2", 4), Host("h3", 1)]
    text = "# cluster\nh1 slots=2\n\nh2 slots = 4 max_slots=8  # big\nh3:3\nh4\n"
    assert parse_hostfile(text) == [Host("h1", 2), Host("h2", 4), Host("h3", 3), Host("h4", 1)]
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


_NEITHER = r"expected name or .* as \[2001:db8::1\]:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (text, "expected")
            for text in ("", "h1:0", "h1:x", "h1:2,,h2", "h 1:2", "h1:2;rm /", ":2")
        ),
        *(
            (text, _NEITHER)
            for text in ("[2001:db8::1:2", "[h1]:2", "2001:db8:1:2", "h1:2:3", "[]:1")
        ),
        ("h1:2,h1:2", "'h1' is named twice"),
    ],
)
def test_bad_hosts_are_named(text, said):
    with pytest.raises(ValueError, match=said):
        parse_hosts(text)
    with pytest.raises(ValueError, match="no host is named"):
        parse_hostfile("# nothing\n")


def test_take_fills_hosts_in_order():
    hosts = [Host("h1", 2), Host("h2", 2), Host("h3", 2)]
    assert take(hosts, 3) == [Host("h1", 2), Host("h2", 1)]
    assert take(hosts, 6) == hosts
    with pytest.raises(ValueError, match=r"7 ranks .* 6 slots"):
        take(hosts, 7)
