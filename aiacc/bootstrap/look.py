"""Which of several addresses of a host answers, where routes and networks do not tell.

Hosts may have networks of equal numbers that lead nowhere: the bridge behind which a container
is, or the one that gives a virtual machine the world. So before the core connects, one rank of
every host connects to one of the next host, at all its addresses at a time, and all ranks decide
anew from what was found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import selectors
import socket
from collections.abc import Sequence

from aiacc.bootstrap.provider import Deadline, Provider
from aiacc.bootstrap.reach import Look, Presence, Reach
from aiacc.bootstrap.untrusted import check_fields, read_object
from aiacc.exceptions import BootstrapError

#: How long the likeliest address has to answer: a packet that is lost is sent again by then.
_PATIENCE_S = 3.0


def settle(
    provider: Provider, presences: Sequence[Presence], hosts: Sequence[str], *, timeout_s: float
) -> Reach:
    """By which address each rank reaches each other one, found out where that is not clear.

    Collective: every rank, with the same table. Another exchange if something has to be found out.

    Args:
        provider: How the ranks exchange what they find.
        presences: One per rank, in rank order.
        hosts: See `Reach`.
        timeout_s: Seconds to wait for the slowest rank.

    Raises:
        BootstrapError: What `Reach` and `Provider.all_gather` raise.
    """
    reach = Reach(presences, hosts)
    unclear = reach.unclear()
    if not unclear:
        return reach
    found = Look()
    if provider.rank in unclear:
        patience = Deadline(min(_PATIENCE_S, timeout_s / 2))
        found = look(reach.ways(provider.rank, unclear[provider.rank]), patience)
    rows = provider.all_gather(json.dumps(dataclasses.asdict(found)).encode(), timeout_s=timeout_s)
    return Reach(presences, hosts, [_decoded(row) for row in rows])


def _decoded(row: bytes) -> Look:
    try:
        fields = read_object(row)
        check_fields(Look, fields)
        return Look(**fields)
    except (ValueError, TypeError) as error:
        raise BootstrapError(
            f"[bootstrap] what a rank found out about addresses cannot be read ({error}); "
            "install the same aiacc on every host"
        ) from error


def look(ways: Sequence[tuple[str, str, int]], patience: Deadline) -> Look:
    """Connect to all of ``ways`` at a time, and close what comes of it.

    Blocks: until the likeliest that can answer has answered, or ``patience`` has ended.

    Args:
        ways: Address, what to connect to, and port; the likeliest first.
        patience: When to go on with what there is.
    """
    sockets: dict[int, socket.socket] = {}
    answered: set[int] = set()
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for number, (_, host, port) in enumerate(ways):
            with contextlib.suppress(OSError):
                family, kind, _, _, target = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )[0]
                trying = opened.enter_context(socket.socket(family, kind))
                trying.setblocking(False)
                trying.connect_ex(target)
                selector.register(trying, selectors.EVENT_WRITE, number)
                sockets[number] = trying
        while sockets and min(sockets) < min(answered, default=len(ways)) and not patience.passed():
            for key, _ in selector.select(patience.left_s()):
                ended = sockets.pop(key.data)
                selector.unregister(ended)
                if ended.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    answered.add(key.data)
    first = min(answered, default=0)
    return Look(
        answered=[address for number, (address, _, _) in enumerate(ways) if number in answered],
        silent=[address for address, _, _ in ways[:first]],
    )
