"""Factors that travel together, packed, from all ranks to those that need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from aiacc.collectives.reduce_ops import Sum
from aiacc.kfac.packing import pack
from aiacc.planning.cost import ALL_REDUCE
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.mpi_ops import allreduce_async_, reducescatter_async, synchronize


class Arrived(NamedTuple):
    """A factor of this step, of all ranks or of this one alone."""

    factor: Factor
    #: Sum over examples, new memory.
    total: torch.Tensor
    #: Examples, on the factor's device.
    weight: torch.Tensor
    #: Whether the sum is packed, as it came from the other ranks.
    is_packed: bool


class FactorBucket:
    """Some factors of one dtype and device, each followed by its weight.

    All-reduced, the packed triangles are one behind the other. Reduced to their owners, by a
    reduce-scatter, every rank has a part of the same size, which begins with what it owns.
    """

    def __init__(
        self,
        name: str,
        operation: str,
        factors: Sequence[Factor],
        owners: Sequence[int | None],
        ranks: Ranks,
    ) -> None:
        """Lay out ``factors``.

        Args:
            name: Of the operation.
            operation: `ALL_REDUCE` or `REDUCE_SCATTER`.
            factors: Of one dtype and device.
            owners: Rank that each is reduced to, by index; None: all need it.
            ranks: All that take part.
        """
        self._name, self._ranks = name, ranks
        self._factors = list(factors)
        self._scatters = operation != ALL_REDUCE
        self._places: dict[str, int] = {}
        if self._scatters:
            ends = [0] * ranks.size
            for factor, owner in zip(factors, owners, strict=True):
                assert owner is not None
                self._places[factor.name] = ends[owner]
                ends[owner] += factor.packed + 1
            self._part = max(ends)
            for factor, owner in zip(factors, owners, strict=True):
                assert owner is not None
                self._places[factor.name] += owner * self._part
            self._elements = self._part * ranks.size
        else:
            self._part = 0
            self._elements = 0
            for factor in factors:
                self._places[factor.name] = self._elements
                self._elements += factor.packed + 1
        self._mine = [
            factor
            for factor, owner in zip(factors, owners, strict=True)
            if owner in (None, ranks.index)
        ]
        self._memory: torch.Tensor | None = None
        self._put: set[str] = set()
        self._handle: int | None = None

    @property
    def nbytes(self) -> int:
        """Of the operation, on each rank."""
        return self._elements * self._factors[0].dtype.itemsize

    def put(self, factor: Factor) -> None:
        """Take what this step has of a factor; the last one starts the operation. Never blocks."""
        if self._handle is not None or factor.name in self._put:
            return
        memory = self._room()
        begin = self._places[factor.name]
        triangle = memory[begin : begin + factor.packed]
        weight = memory[begin + factor.packed]
        if factor.total is None or factor.weight is None:
            triangle.zero_()
            weight.zero_()
        else:
            pack([factor.total], triangle)
            weight.copy_(factor.weight)
            factor.total = factor.weight = None
        self._put.add(factor.name)
        if len(self._put) == len(self._factors):
            self._start(memory)

    def complete(self) -> None:
        """Start the operation, with zeros for what this rank has not. Never blocks."""
        for factor in self._factors:
            self.put(factor)

    def finish(self) -> Iterator[Arrived]:
        """Wait for the operation; the factors that this rank gets.

        Raises:
            CollectiveError: It failed.
        """
        assert self._handle is not None
        handle, self._handle = self._handle, None
        self._put.clear()
        self._memory = None
        result: torch.Tensor = synchronize(handle)
        base = self._part * self._ranks.index
        for factor in self._mine:
            begin = self._places[factor.name] - base
            end = begin + factor.packed
            yield Arrived(factor, result[begin:end], result[end], True)

    def _room(self) -> torch.Tensor:
        if self._memory is None:
            first = self._factors[0]
            # What is between the parts of ranks is sent as well.
            make = torch.zeros if self._scatters else torch.empty
            self._memory = make(self._elements, dtype=first.dtype, device=first.device)
        return self._memory

    def _start(self, memory: torch.Tensor) -> None:
        process_set = self._ranks.process_set
        if self._scatters:
            self._handle = reducescatter_async(memory, self._name, Sum, process_set)
        else:
            self._handle = allreduce_async_(memory, None, self._name, Sum, process_set=process_set)


class FactorExchange:
    """All factors of a step: those in buckets, and those that stay where they are.

    Every rank submits every bucket in every step that builds factors, whatever its modules did.
    """

    def __init__(self, buckets: Sequence[FactorBucket], local: Sequence[Factor]) -> None:
        """Of these buckets; ``local`` are used here as they are."""
        self._buckets = list(buckets)
        self._local = list(local)
        self._bucket_of = {factor.name: bucket for bucket in buckets for factor in bucket._factors}

    @property
    def names(self) -> list[list[str]]:
        """Of the factors of each bucket."""
        return [[factor.name for factor in bucket._factors] for bucket in self._buckets]

    @property
    def nbytes(self) -> int:
        """Of all operations, on each rank."""
        return sum(bucket.nbytes for bucket in self._buckets)

    def ready(self, factor: Factor) -> None:
        """All uses of this step are in. Never blocks."""
        bucket = self._bucket_of.get(factor.name)
        if bucket is not None:
            bucket.put(factor)

    def complete(self) -> None:
        """Start what has not left yet. Never blocks."""
        for bucket in self._buckets:
            bucket.complete()

    def finish(self) -> list[Arrived]:
        """What this rank has got, after `complete`. Blocks until it is there."""
        arrived = [one for bucket in self._buckets for one in bucket.finish()]
        for factor in self._local:
            if factor.total is not None and factor.weight is not None:
                arrived.append(Arrived(factor, factor.total, factor.weight, False))
        return arrived
