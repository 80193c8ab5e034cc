"""``aiacc-plan probe``: what collective operations cost here, as a network for the planners.

Every rank runs it, so a launcher has to start it::

    aiaccrun -np 4 aiacc-plan probe --output net.json
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import aiacc
from aiacc import array
from aiacc.collectives.objects import broadcast_object
from aiacc.planning import cost
from aiacc.planning.fit import fit_affine
from aiacc.planning.network import VERSION
from aiacc.run.plan_kfac import writing

SMALLEST = 1 << 10
#: That the core has (AIACC_LANES).
MOST_LANES = 64
#: Samples of each point at least, and seconds to spend on more of them.
SAMPLES, MOST_SAMPLES = 7, 40
SECONDS_PER_POINT = 0.3
#: The shortest all-reduce, two round trips, from which on a connection that starts slowly is felt.
FAR_S = 10e-3
_SLOW_START = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")


def sizes(most: int) -> list[int]:
    """Bytes of the points: powers of four from SMALLEST, and ``most``. Pure."""
    found = [SMALLEST]
    while found[-1] * 4 < most:
        found.append(found[-1] * 4)
    return found if found[-1] == most else [*found, most]


def network(
    points: Sequence[dict[str, Any]], world: int, lanes: int, unit_bytes: int
) -> dict[str, Any]:
    """The file's content: the points, and what a + b M of an all-reduce they make. Pure.

    Args:
        points: As they were measured.
        world: Ranks.
        lanes: Of the job.
        unit_bytes: Of the job.
    """
    row = [
        (point["bytes"], point["seconds"])
        for point in points
        if (point["operation"], point["lanes"]) == (cost.ALL_REDUCE, 1)
    ]
    try:
        a, b = fit_affine(row)
        comment = f"measured; an all-reduce is about {a:.3g} s + {b:.3g} s/byte"
    except ValueError as error:  # the points are worth the file
        comment = f"measured; not a + b M: {error}"
    return {
        "version": VERSION,
        "model": "table",
        "comment": comment,
        "world": world,
        "lanes": lanes,
        "unit_bytes": unit_bytes,
        "points": list(points),
    }


def advice(points: Sequence[dict[str, Any]], starts_slowly: bool) -> list[str]:
    """What to say about the hosts' setting of TCP, with these points. Pure."""
    shortest_s = min(point["seconds"] for point in points if point["operation"] == cost.ALL_REDUCE)
    if not starts_slowly or shortest_s < FAR_S:
        return []
    return [
        f"the shortest all-reduce takes {1e3 * shortest_s:.0f} ms, and connections start slowly "
        "again after each pause: set net.ipv4.tcp_slow_start_after_idle to 0 on every host "
        "(sysctl -w; docs/network.md), or steps may take longer than predicted"
    ]


def starts_slowly(path: Path = _SLOW_START) -> bool:
    """Whether a connection of this host that was idle starts slowly again."""
    try:
        return path.read_text().strip() != "0"
    except OSError:
        return False  # no Linux, or nothing that could be set


def probe(output: Path, most_bytes: int, most_lanes: int) -> list[str]:
    """Measure as one rank; rank 0 writes the file and returns what to say. Collective, blocks.

    Raises ValueError for a single rank, or, on every rank, if rank 0 cannot write the file.
    """
    aiacc.init()
    world = aiacc.size()
    if world < 2:
        raise ValueError(
            "one rank has nobody to measure with (expected a launcher, as in "
            "`aiaccrun -np 4 aiacc-plan probe`)"
        )
    _check_output(output)
    rank = aiacc.rank()
    points = []
    for operation, lanes in itertools.product(cost.OPERATIONS, range(1, most_lanes + 1)):
        for nbytes in sizes(most_bytes):
            seconds = _seconds(operation, nbytes, lanes, world)
            points.append(
                {"operation": operation, "lanes": lanes, "bytes": nbytes, "seconds": seconds}
            )
        if rank == 0:  # a slow network takes minutes
            sys.stderr.write(
                f"aiacc-plan: {operation}, {lanes} at a time: {seconds:.3g} s for {nbytes} bytes\n"
            )
    slow = array.allreduce(np.array([int(starts_slowly())]), op=array.Max, name="probe.slow_start")
    found = network(points, world, *(int(aiacc.stats()[name]) for name in ("lanes", "unit_bytes")))
    aiacc.shutdown()
    if rank != 0:
        return []
    with writing("--output"):
        output.write_text(json.dumps(found, indent=1) + "\n")
    said = f"{output}: {len(points)} points among {world} ranks; {found['comment']}"
    return [said, *advice(points, bool(slow[0]))]


def _check_output(output: Path) -> None:
    """Before minutes of measurements. Collective."""
    cause = None
    if aiacc.rank() == 0:
        try:
            is_new = not os.path.lexists(output)
            output.open("a").close()
            if is_new:  # an empty file is no network, if this ends before its time
                output.unlink()
        except OSError as error:
            cause = str(error)
    cause = broadcast_object(cause, 0, "probe.output")
    if cause is not None:
        raise ValueError(f"rank 0 cannot write --output: {cause}; name another file")


def _seconds(operation: str, nbytes: int, lanes: int, world: int) -> float:
    """Median of what ``lanes`` operations at a time take, on average over the ranks.

    Ranks leave a barrier up to a delay of the network apart: an operation is as much too long for
    the first as it is too short for the last. A broadcast is short for its root, so there the
    slowest rank counts.
    """
    over_ranks = array.Max if operation == cost.BROADCAST else array.Average
    start = _starters(nbytes, world)[operation]
    samples: list[float] = []
    spent, number = 0.0, MOST_SAMPLES
    while len(samples) < number:
        array.barrier()
        began = time.perf_counter()
        handles = [start(f"probe.{operation}.{nbytes}.{lane}") for lane in range(lanes)]
        for handle in handles:
            array.synchronize(handle)
        mine = time.perf_counter() - began
        took = float(array.allreduce(np.array([mine]), op=over_ranks, name="probe.took")[0])
        samples.append(took)
        spent += took  # equal on all ranks, so that all stop together
        if spent > SECONDS_PER_POINT and len(samples) >= SAMPLES:
            number = len(samples)
    return median(samples[1:])  # the first agrees on the names


def _starters(nbytes: int, world: int) -> dict[str, Callable[[str], int]]:
    """What starts each operation on a tensor of so many bytes."""
    whole = np.zeros(max(world, nbytes // 4), np.float32)
    part = whole[: len(whole) // world]
    return {
        cost.ALL_REDUCE: lambda name: array.allreduce_async(whole, op=array.Sum, name=name),
        cost.REDUCE_SCATTER: lambda name: array.reducescatter_async(whole, op=array.Sum, name=name),
        cost.ALL_GATHER: lambda name: array.allgather_async(part, name=name),
        cost.BROADCAST: lambda name: array.broadcast_async(whole, root_rank=0, name=name),
    }
