"""The collectives of a run of the row network.faults and their results. Pure.

Numbers are whole and small, so that sums are exact in every dtype. They depend on seed, step,
operation, rank and place, so that stale, foreign or displaced bytes show.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiacc.collectives.splits import scattered_rows

Array = NDArray[np.generic]

#: Period of the numbers, a prime.
_PERIOD = 1021
_LARGEST = 1_000_000
_NUMBERS = np.resize(np.arange(1, _PERIOD + 1), _LARGEST + 2 * _PERIOD)


@dataclass(frozen=True)
class Operation:
    """One collective, the same on all ranks.

    Attributes:
        kind: allreduce, allreduce_ (in place), grouped_allreduce, allgather, broadcast,
            reducescatter or alltoall.
        name: None for an automatic one.
        dtype: Of the tensors.
        elements: Of a rank's tensor, about.
        shift: Where the numbers begin, 0 .. 1020.
        root: Of a broadcast.
        blocking: Whether it is waited for before the next one starts.
    """

    kind: str
    name: str | None
    dtype: str
    elements: int
    shift: int
    root: int = 0
    blocking: bool = False


def operations(seed: int, step: int, size: int) -> list[Operation]:
    """The collectives of one step of a job of ``size`` ranks.

    Those with a name have it in every step, with the same dtype and size, as gradients do.
    """
    rng = random.Random(f"work {seed} {step}")
    shared = random.Random(f"shapes {seed}")
    found = []

    def add(kind: str, name: str | None, elements: int, *, blocking: bool = False) -> None:
        dtype = shared.choice(("float32", "float32", "int64", "int32", "float64"))
        found.append(
            Operation(
                kind, name, dtype, elements, rng.randrange(_PERIOD), rng.randrange(size), blocking
            )
        )

    add("allreduce", "first", 1, blocking=True)
    for number in range(shared.randint(8, 24)):  # packed together
        add("allreduce_", f"small{number}", shared.randint(0, 2000))
    for number in range(shared.randint(1, 2)):  # more than 1 MiB, cut
        add("allreduce", f"large{number}", shared.randint(280_000, 450_000))
    add("grouped_allreduce", "group", shared.randint(1, 30_000))
    add("allreduce_", "whole", shared.randint(4_000, 9_000), blocking=True)
    for kind in ("allgather", "broadcast", "reducescatter", "alltoall"):
        large = shared.randint(20_000, 120_000) if shared.random() < 0.3 else 0
        add(kind, f"its {kind}", large or shared.randint(1, 5_000))
    for kind in rng.sample(("allreduce", "allgather", "broadcast", "alltoall"), 2):
        add(kind, None, rng.randint(1, 20_000), blocking=rng.random() < 0.5)
    return found


def sent(operation: Operation, rank: int, size: int) -> list[Array]:
    """What a rank hands in: one tensor, or several of a group."""
    if operation.kind == "grouped_allreduce":
        return [
            _values(operation, rank, elements, number) for number, elements in _group(operation)
        ]
    if operation.kind == "allgather":
        return [_values(operation, rank, _own(operation, rank))]
    if operation.kind == "alltoall":
        return [_values(operation, rank, sum(splits(operation, rank, size)))]
    return [_values(operation, rank, operation.elements)]


def splits(operation: Operation, rank: int, size: int) -> list[int]:
    """Elements of an all-to-all that a rank sends to each."""
    share = operation.elements // size
    return [share + (rank + 2 * target + operation.shift) % 5 for target in range(size)]


def wanted(operation: Operation, rank: int, size: int) -> list[Array]:
    """What a rank has to get."""
    if operation.kind == "grouped_allreduce":
        return [_sum(operation, size, elements, number) for number, elements in _group(operation)]
    if operation.kind == "broadcast":
        return [_values(operation, operation.root, operation.elements)]
    if operation.kind == "allgather":
        parts = [_values(operation, source, _own(operation, source)) for source in range(size)]
        return [np.concatenate(parts)]
    if operation.kind == "alltoall":
        parts = []
        for source in range(size):
            counts = splits(operation, source, size)
            before = sum(counts[:rank])
            whole = _values(operation, source, sum(counts))
            parts.append(whole[before : before + counts[rank]])
        return [np.concatenate(parts)]
    total = _sum(operation, size, operation.elements)
    if operation.kind == "reducescatter":
        rows = [scattered_rows(operation.elements, other, size) for other in range(size)]
        return [total[sum(rows[:rank]) : sum(rows[: rank + 1])]]
    return [total]


def tensors(seed: int, steps: int, size: int) -> int:
    """Tensors that a rank gets in all steps."""
    return sum(
        len(_group(operation)) if operation.kind == "grouped_allreduce" else 1
        for step in range(steps)
        for operation in operations(seed, step, size)
    )


def _group(operation: Operation) -> list[tuple[int, int]]:
    return [(number, operation.elements // (number + 1) + 1) for number in range(3)]


def _own(operation: Operation, rank: int) -> int:
    """Elements that a rank adds to an all-gather."""
    return operation.elements + 5 * rank


def _values(operation: Operation, rank: int, elements: int, number: int = 0) -> Array:
    return (_pattern(operation, elements, number) * (rank + 1) + rank).astype(operation.dtype)


def _sum(operation: Operation, size: int, elements: int, number: int = 0) -> Array:
    pattern = _pattern(operation, elements, number)
    return (pattern * (size * (size + 1) // 2) + size * (size - 1) // 2).astype(operation.dtype)


def _pattern(operation: Operation, elements: int, number: int) -> Array:
    begin = operation.shift + number
    return _NUMBERS[begin : begin + elements]
