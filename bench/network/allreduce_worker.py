"""One rank of `bench.network.allreduce`: times all-reduces of one array and writes what it saw."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import aiacc.array as hvd
from bench.network import sockets

#: Period of the inputs, so that data which moved to a wrong offset is noticed.
_PERIOD = 1021


def main() -> None:
    """Measure, write the file ``rank<N>.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    hvd.init()
    size = hvd.size()
    pattern = np.resize(np.arange(_PERIOD, dtype=np.float32), options.bytes // 4)
    tensor = np.empty_like(pattern)
    starts, ends, cpu = [], [], []
    for iteration in range(1 + options.iterations):  # the first one warms up
        np.add(pattern, hvd.rank(), out=tensor)
        hvd.barrier()
        before = time.process_time_ns()
        starts.append(time.monotonic_ns())
        hvd.allreduce_(tensor, op=hvd.Sum, name="tensor")
        ends.append(time.monotonic_ns())
        cpu.append(time.process_time_ns() - before)
        hvd.barrier()  # the first one's check takes no core from the last one's all-reduce
        tensor -= size * (size - 1) // 2
        tensor /= size
        if not np.array_equal(tensor, pattern):
            raise AssertionError(f"wrong result in iteration {iteration}")
    hvd.barrier()
    import aiacc

    found = {
        "rank": hvd.rank(),
        "engine": aiacc._core.engine(),
        "lanes": aiacc._core.lanes(),
        "stats": dict(aiacc.stats()),
        "starts": starts[1:],
        "ends": ends[1:],
        "cpu_ns": cpu[1:],
        "connections": [asdict(found) for found in sockets.established()],
    }
    hvd.barrier()  # others count their connections too
    hvd.shutdown()
    (options.out / f"rank{found['rank']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
