"""Reads what ``ss`` prints about TCP connections. Pure, but for `established`."""

import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_COMMAND = (
    "ss",
    "--tcp",
    "--numeric",
    "--info",
    "--oneline",
    "--no-header",
    "state",
    "established",
)


@dataclass(frozen=True)
class Connection:
    """One end of an established TCP connection.

    Attributes:
        local: Own address, "host:port".
        peer: Address of the other end.
        sent_bytes: Payload that the other end has acknowledged.
        received_bytes: Payload that has come.
        congestion: Name of the congestion control.
        pacing_bps: Rate in bit/s that the kernel paces to at the moment.
        most_bps: Highest rate in bit/s that it may pace to (SO_MAX_PACING_RATE), 0 for any.
    """

    local: str
    peer: str
    sent_bytes: int = 0
    received_bytes: int = 0
    congestion: str = ""
    pacing_bps: int = 0
    most_bps: int = 0


def established() -> list[Connection]:
    """The connections of the calling process's network namespace. Needs iproute2 5.12 or newer."""
    done = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=30, check=True)
    return parse(done.stdout)


def parse(text: str) -> list[Connection]:
    """Connections from the lines of ``ss --tcp --numeric --info --oneline state established``.

    Raises:
        ValueError: A line is not of that form.
    """
    return [_parse_line(line) for line in text.splitlines() if line.strip()]


def carrying(connections: Sequence[Connection], least_bytes: int) -> list[Connection]:
    """Those that have sent at least as many bytes."""
    return [found for found in connections if found.sent_bytes >= least_bytes]


def _parse_line(line: str) -> Connection:
    words = line.split()
    if len(words) < 5 or ":" not in words[2]:
        raise ValueError(f"not a line of ss: {line!r}")
    fields = dict(word.split(":", 1) for word in words[4:] if ":" in word)
    values = dict(itertools.pairwise(words))
    pacing, _, most = values.get("pacing_rate", "").partition("/")
    return Connection(
        words[2],
        words[3],
        int(fields.get("bytes_acked", 0)),
        int(fields.get("bytes_received", 0)),
        words[4],
        _bps(pacing),
        _bps(most),
    )


def _bps(rate: str) -> int:
    """``953.1Mbps`` in bit/s, 0 for nothing."""
    digits = rate.rstrip("GKMbps")
    factor = {"bps": 1, "Kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
    return round(float(digits) * factor[rate[len(digits) :]]) if digits else 0
