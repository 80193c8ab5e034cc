"""One rank of a run of the row network.faults: collectives whose every element is checked.

Makes ``step<N>`` in the folder of the run when step N begins, and ``rank<N>.past`` before its last
collective.
"""

import ctypes
import faulthandler
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import aiacc.array as hvd
from aiacc.exceptions import AiaccError
from bench.network.faults.work import Operation, operations, sent, splits, wanted


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps, whatever happens; the fields of a report."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    found: dict[str, Any] = {"outcome": "done", "checked": 0, "type": "", "text": ""}
    try:
        _work(task["seed"], task["steps"], Path(task["folder"]), found)
    except AiaccError as error:
        found.update(outcome="error", at=time.monotonic(), **_described(error))
        _fails_again(error, found)
    except AssertionError as error:
        found.update(outcome="wrong", **_described(error))
    except Exception as error:
        traceback.print_exc()
        found.update(outcome="bug", **_described(error))
    found["short_calls"] = _short_calls()
    hvd.shutdown()
    return found


def _work(seed: int, steps: int, out: Path, found: dict[str, Any]) -> None:
    hvd.init()
    for step in range(steps):
        (out / f"step{step}").touch()
        under_way = []
        for operation in operations(seed, step, hvd.size()):
            handle = _start(operation)
            if operation.blocking:
                found["checked"] += _check(step, operation, handle)
            else:
                under_way.append((operation, handle))
        for operation, handle in under_way:
            found["checked"] += _check(step, operation, handle)
    (out / f"rank{hvd.rank()}.past").touch()
    hvd.barrier()


def _start(operation: Operation) -> int:
    rank, size = hvd.rank(), hvd.size()
    tensors = sent(operation, rank, size)
    begins = "allreduce_async_" if operation.kind == "allreduce_" else f"{operation.kind}_async"
    given = tensors if operation.kind == "grouped_allreduce" else tensors[0]
    more = {"broadcast": [operation.root], "alltoall": [splits(operation, rank, size)]}
    how = {"op": hvd.Sum} if "reduce" in operation.kind else {}
    begin = getattr(hvd, begins)
    return int(begin(given, *more.get(operation.kind, ()), name=operation.name, **how))


def _check(step: int, operation: Operation, handle: int) -> int:
    """Wait for the result; the number of its tensors. Raises AssertionError."""
    got = hvd.synchronize(handle)
    if operation.kind == "alltoall":
        got = [got[0]]
    elif operation.kind != "grouped_allreduce":
        got = [got]
    right = wanted(operation, hvd.rank(), hvd.size())
    for mine, theirs in zip(right, got, strict=True):
        np.testing.assert_array_equal(theirs, mine, f"step {step}, {operation}", strict=True)
    return len(right)


def _fails_again(error: AiaccError, found: dict[str, Any]) -> None:
    """The first failure is kept: whatever follows has to fail in the same way."""
    if not hvd.is_initialized():
        return
    try:
        hvd.allreduce(np.ones(3), name="later")
    except type(error) as later:
        if str(later) == str(error):
            return
        found.update(outcome="bug", text=f"{error}; a later call fails with another text: {later}")
    except AiaccError as later:
        found.update(outcome="bug", text=f"{error}; a later call fails with {later!r}")
    else:
        found.update(outcome="bug", text=f"{error}; a later call succeeds")


def _short_calls() -> int:
    """What the preloaded library of short_io.c counts, 0 without it."""
    own = ctypes.CDLL(None)
    if not hasattr(own, "short_io_calls"):
        return 0
    own.short_io_calls.restype = ctypes.c_long
    return int(own.short_io_calls())


def _described(error: Exception) -> dict[str, str]:
    return {"type": type(error).__name__, "text": str(error)}
