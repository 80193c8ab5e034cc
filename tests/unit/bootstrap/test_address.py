"""Addresses of the rendezvous: read, written, bound."""

import socket

import pytest

from aiacc import _core
from aiacc.bootstrap.address import (
    _listening_inode,
    _process_with,
    join_address,
    listen,
    split_address,
)
from aiacc.exceptions import BootstrapError


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:70000", "host:x", "::1:5", "host:-1", "h:²"]
)
def test_bad_address(text):
    with pytest.raises(BootstrapError, match="AIACC_ADDR="):
        split_address(text)
    with pytest.raises(BootstrapError, match=r"expected one, as \[fe80::1%eth0\]:80"):
        split_address("[fe80::1]:80")


def test_addresses():
    assert split_address("node7:1234") == ("node7", 1234)
    assert split_address("[::1]:1") == ("::1", 1)
    assert split_address("[2001:db8::1]:29500") == ("2001:db8::1", 29500)
    assert split_address("[fe80::1%eth0]:2") == ("fe80::1%eth0", 2)
    assert join_address("fe80::1%eth0", 2) == "[fe80::1%eth0]:2"
    assert join_address("::ffff:10.0.0.1", 2) == "10.0.0.1:2"
    assert join_address("node7", 2) == "node7:2"


def _link_local() -> str:
    """A link-local address of this host with its interface, "" if it has none."""
    return next(
        (
            f"{address}%{interface}"
            for interface, address, _, running in _core.interface_addresses()
            if running and address.startswith("fe80:")
        ),
        "",
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", _link_local()])
def test_an_address_is_bound_as_such(port, host):
    if not any(one[1] == host.partition("%")[0] for one in _core.interface_addresses()):
        pytest.skip("this host has no such address")
    with listen(host, port, 1) as server:
        assert server.getsockname()[0] == host.partition("%")[0]
        with socket.create_connection((host, port), 5):
            pass


def test_an_interface_that_is_not_there(port):
    with pytest.raises(BootstrapError, match=r"cannot listen on \[fe80::1%nosuch0\]"):
        listen("fe80::1%nosuch0", port, 1)


def test_a_name_is_bound_on_every_interface(port):
    # The name may be 127.0.1.1 to this host, and its real address to the others.
    with listen(socket.gethostname(), port, 1), socket.create_connection(("127.0.0.1", port), 5):
        pass


def test_a_port_whose_owner_is_just_closing_it_is_bound(port, monkeypatch):
    """The table of listeners is read, the owner closes, and then nobody has that socket."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def nobody_has_it(_):
            inode = _listening_inode(port)
            server.close()
            monkeypatch.undo()
            return _process_with(inode)

        monkeypatch.setattr("aiacc.bootstrap.address.port_owner", nobody_has_it)
        with listen("127.0.0.1", port, backlog=1) as mine:
            assert mine.getsockname()[1] == port
