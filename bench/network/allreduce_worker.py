"""One rank of `bench.network.allreduce`: times all-reduces of one array and writes what it saw."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import aiacc.array as hvd
from bench.collectives.rows import BFLOAT16_EXACT
from bench.network import sockets

Array = npt.NDArray[Any]

#: Period of the inputs, so that data which moved to a wrong offset is noticed.
_PERIOD = 1021


def main() -> None:
    """Measure, write the file ``rank<N>.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--compression", choices=("none", "fp16", "bf16"), default="none")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    hvd.init()
    size = hvd.size()
    narrow = options.compression != "none"
    # An odd period: of what is exact in 16 bits as a sum.
    period = (BFLOAT16_EXACT // size - size) // 2 * 2 - 1 if narrow else _PERIOD
    pattern = np.resize(np.arange(period, dtype=np.float32), options.bytes // 4)
    allreduce_ = _compressing(options.compression) if narrow else _plain
    tensor = np.empty_like(pattern)
    starts, ends, cpu = [], [], []
    for iteration in range(1 + options.iterations):  # the first one warms up
        np.add(pattern, hvd.rank(), out=tensor)
        hvd.barrier()
        before = time.process_time_ns()
        starts.append(time.monotonic_ns())
        allreduce_(tensor)
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


def _plain(tensor: Array) -> None:
    hvd.allreduce_(tensor, op=hvd.Sum, name="tensor")


def _compressing(compression: str) -> Callable[[Array], None]:
    """The same through the front-end that narrows."""
    import torch

    import aiacc.torch

    form = getattr(aiacc.torch.Compression, compression)

    def allreduce_(tensor: Array) -> None:
        whole = torch.from_numpy(tensor)
        aiacc.torch.allreduce_(whole, op=hvd.Sum, name="tensor", compression=form)

    return allreduce_


if __name__ == "__main__":
    main()
