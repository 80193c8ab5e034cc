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
from bench.network.faults.work import Array, Operation, operations, sent, splits, wanted


class WrongResultError(Exception):
    """A collective gave other numbers than it should."""


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps, whatever happens; the fields of a report."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    found: dict[str, Any] = {"outcome": "done", "checked": 0, "type": "", "text": ""}
    try:
        _work(task["seed"], task["steps"], Path(task["folder"]), found)
    except AiaccError as error:
        found.update(outcome="error", at=time.monotonic(), **_described(error))
        _fails_again(error, found)
    except WrongResultError as error:
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
    tensors, name = sent(operation, rank, size), operation.name
    if operation.kind == "grouped_allreduce":
        return hvd.grouped_allreduce_async(tensors, name=name, op=hvd.Sum)
    (tensor,) = tensors
    if operation.kind == "allreduce":
        return hvd.allreduce_async(tensor, name=name, op=hvd.Sum)
    if operation.kind == "allreduce_":
        return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
    if operation.kind == "allgather":
        return hvd.allgather_async(tensor, name=name)
    if operation.kind == "broadcast":
        return hvd.broadcast_async(tensor, operation.root, name=name)
    if operation.kind == "reducescatter":
        return hvd.reducescatter_async(tensor, name=name, op=hvd.Sum)
    return hvd.alltoall_async(tensor, splits(operation, rank, size), name=name)


def _check(step: int, operation: Operation, handle: int) -> int:
    """Wait for the result; the number of its tensors. Raises WrongResultError."""
    got = hvd.synchronize(handle)
    if operation.kind == "alltoall":
        got = [got[0]]
    elif operation.kind != "grouped_allreduce":
        got = [got]
    right = wanted(operation, hvd.rank(), hvd.size())
    if len(got) != len(right):
        raise WrongResultError(f"{operation}: {len(got)} tensors (expected {len(right)})")
    for mine, theirs in zip(right, got, strict=True):
        _compare(step, operation, mine, theirs)
    return len(right)


def _compare(step: int, operation: Operation, right: Array, got: Array) -> None:
    what = f"step {step}, {operation}"
    if (got.shape, got.dtype) != (right.shape, right.dtype):
        raise WrongResultError(
            f"{what}: {got.dtype} {got.shape} (expected {right.dtype} {right.shape})"
        )
    if not np.array_equal(got, right):
        wrong = np.flatnonzero(got != right)
        first = wrong[0]
        raise WrongResultError(
            f"{what}: {len(wrong)} of {right.size} elements differ, the first at {first}: "
            f"{got[first]} (expected {right[first]})"
        )


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
