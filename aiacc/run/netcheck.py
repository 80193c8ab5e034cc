"""``aiaccrun --netcheck host1,host2``: what one flow carries between hosts, and what several do.

Run as a program it is one rank of the check: engine `tcp`, as many lanes connected as are tried.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

import aiacc
from aiacc import _core
from aiacc.array import allreduce_, barrier
from aiacc.autotune.lane_search import candidates
from aiacc.collectives.reduce_ops import Sum

LANES = 16
#: All-reduced at a time: one unit of the default size for each of 32 turns of a lane.
BYTES = 32 << 20
SAMPLES = 5
#: More flows are more threads and connections: what they have to be faster by.
GAIN = 1.15
_UNIT_BYTES = 1 << 20

#: Variables of the ranks.
SETTINGS = {
    "AIACC_ENGINE": "tcp",
    "AIACC_LANES": str(LANES),
    "AIACC_UNIT_BYTES": str(_UNIT_BYTES),
    "AIACC_AUTOTUNE": "0",
}


def bus_mbit(tensor_bytes: int, size: int, seconds: float) -> float:
    """Bus bandwidth in Mbit/s: what a ring sends and receives on each of ``size`` hosts. Pure."""
    return tensor_bytes * 8 * 2 * (size - 1) / size / seconds / 1e6


def advised(seconds: Mapping[int, Sequence[float]]) -> int:
    """The fewest lanes than which no more are faster by GAIN, and by more than chance. Pure.

    That is: three quarters of their samples are faster than three quarters of the others.
    """
    best = min(seconds)
    for lanes in sorted(seconds):
        fewer, more = sorted(seconds[best]), sorted(seconds[lanes])
        apart = more[-1 - len(more) // 4] < fewer[len(fewer) // 4]
        if apart and median(more) * GAIN <= median(fewer):
            best = lanes
    return best


def report(seconds: Mapping[int, Sequence[float]], size: int, host: str = "") -> str:
    """What to tell the user. Pure.

    Args:
        seconds: Durations of all-reduces of BYTES, by lanes; that of one lane included.
        size: Number of ranks.
        host: The name of their host if they share one.
    """
    rates = {lanes: bus_mbit(BYTES, size, median(samples)) for lanes, samples in seconds.items()}
    best = advised(seconds)
    where = f" of this host, {host}, over loopback" if host else ""
    lines = [f"all-reduce of {BYTES >> 20} MiB between {size} ranks{where}; each sends at", ""]
    lines += [
        f"  {lanes:2} flow{'s' if lanes > 1 else ' '} {rate:8.0f} Mbit/s  {rate / rates[1]:5.2f}x"
        for lanes, rate in sorted(rates.items())
    ]
    if host:
        advice = (
            "loopback is no network, so there is no advice; name the hosts that it connects, as in "
            "`aiaccrun --netcheck host1,host2`"
        )
    elif best == 1:
        advice = "one flow fills this network: AIACC_LANES=1 suffices (4 is the default)"
    else:
        advice = f"several flows are faster: set AIACC_LANES={best}"
    return "\n".join([*lines, "", advice, ""])


def main() -> int:
    """Measure as one rank; rank 0 prints the report."""
    aiacc.init()
    if aiacc.size() < 2:
        print("aiaccrun: --netcheck of one rank (expected at least two hosts)", file=sys.stderr)
        return 2
    buffer = np.zeros(BYTES // 4, np.float32)
    seconds: dict[int, list[float]] = {lanes: [] for lanes in candidates(LANES)}
    for number in range(SAMPLES):
        tour = list(seconds)
        for lanes in tour if number % 2 == 0 else tour[::-1]:
            _use(lanes)
            if number == 0:
                allreduce_(buffer, op=Sum, name="netcheck")
            barrier()
            began = time.perf_counter()
            allreduce_(buffer, op=Sum, name="netcheck")
            seconds[lanes].append(time.perf_counter() - began)
    if aiacc.rank() == 0:
        host = socket.gethostname() if aiacc.local_size() == aiacc.size() else ""
        print(report(seconds, aiacc.size(), host), end="", flush=True)
    aiacc.shutdown()
    return 0


def _use(lanes: int) -> None:
    """Have all ranks use that many lanes. Blocks until they do."""
    if aiacc.rank() == 0:
        _core.propose_parameters(_UNIT_BYTES, lanes)
    different = np.ones(1)
    while different[0] > 0:
        # All ranks leave the loop together, whatever each has seen.
        different[0] = aiacc.stats()["lanes"] != lanes
        allreduce_(different, op=Sum, name="netcheck.lanes")


if __name__ == "__main__":
    sys.exit(main())
