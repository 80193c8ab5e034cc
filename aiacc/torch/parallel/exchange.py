"""Computes what is this rank's part, and exchanges results while the next ones are computed.

The parallel tensor operator of CommLib (Shi et al., "Towards Scalable Distributed Training of Deep
Learning on Public Cloud Clusters", MLSys 2021, arXiv 2010.10458): y_i = f(x_i) by the owner of i
alone, then an all-gather of y. Who owns what is decided elsewhere (`aiacc.planning.division`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from aiacc.collectives.handles import synchronize
from aiacc.collectives.objects import gather_objects
from aiacc.exceptions import ParallelMapError
from aiacc.planning.division.placement import Owners, Waves
from aiacc.process_sets import ProcessSet, rank_and_size
from aiacc.torch.adapter import check_moved
from aiacc.torch.ops.allgather import allgather_async
from aiacc.torch.parallel.departures import Departures

#: What a function makes of an item.
Result: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
#: Results begin at multiples of this many bytes, as views of any dtype need.
_ALIGNED = 16


class Exchanged(NamedTuple):
    """Results of all items, on every rank, and what they took."""

    results: list[Result]
    #: Of each item on the rank that has computed it, this one for items of everybody.
    seconds: list[float]
    #: Bytes of each result.
    nbytes: list[int]


class _Spec(NamedTuple):
    """A result of another rank."""

    #: Dtype and shape of each tensor.
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    #: Whether the function has returned a tuple.
    several: bool
    seconds: float


class _Report(NamedTuple):
    """What a rank says of its part."""

    specs: dict[int, _Spec]
    #: Item and text of the first error.
    error: tuple[int, str] | None


def compute_and_exchange(
    compute: Callable[[int], Result],
    owners: Owners,
    waves: Waves,
    like: torch.Tensor,
    *,
    name: str,
    process_set: ProcessSet,
    describe: Callable[[int], str] = "item {}".format,
    timed: bool = False,
) -> Exchanged:
    """Compute the items of this rank, wave by wave, and gather those of all ranks.

    What a wave has made travels on the lanes while the next one is computed. Items without owner
    are computed last, by every rank. Results of other ranks are views of one buffer for each wave.

    Collective: every rank of the set, with the same name, owners and waves.
    Blocks: until all results are there.

    Args:
        compute: The result of an item by its number: a tensor or several, of any dtypes and shapes,
            on the device of ``like``. It does not communicate.
        owners: Of each item, by its index in the set.
        waves: Of the items that have an owner; see `in_waves`.
        like: Any tensor where results are.
        name: Pairs this call with those of the other ranks.
        process_set: Ranks that take part.
        describe: What errors call an item.
        timed: Wait for the device after each item, so that its seconds are right on a GPU, too.

    Raises:
        ParallelMapError: ``compute`` has raised, on whichever rank: on all ranks; but where it was
            KeyboardInterrupt or the like, that.
        CollectiveError: A collective operation failed.
    """
    rank = rank_and_size(process_set).rank
    results: dict[int, Result] = {}
    specs: dict[int, _Spec] = {}
    error: tuple[int, str] | None = None
    cause: BaseException | None = None

    def compute_all(items: Sequence[int]) -> None:
        nonlocal error, cause
        for item in items:
            if cause is not None:
                return
            began = time.perf_counter()
            try:
                result, spec = _checked(compute(item), like.device)
            except BaseException as raised:  # the others wait for this rank, whatever it is
                error, cause = (item, _text_of(raised)), raised
                return
            if timed and like.is_cuda:
                torch.cuda.synchronize(like.device)
            results[item] = result
            specs[item] = spec._replace(seconds=time.perf_counter() - began)

    handles: dict[int, int] = {}

    def start(number: int) -> None:
        done = [results[item] for item in waves[number][rank] if item in results]
        packed = _pack(done, like)
        name_of_wave = f"{name}.{number}of{len(waves)}"
        handles[number] = allgather_async(packed, name_of_wave, process_set)

    departures = Departures([one[rank] for one in waves], start)
    for one in waves:
        compute_all(one[rank])
        departures.computed(item for item in one[rank] if item in results)
    departures.give_up()  # if an item has failed
    compute_all([item for item, owner in enumerate(owners) if owner is None])
    reports: list[_Report] = gather_objects(_Report(specs, error), f"{name}.report", process_set)
    buffers = [synchronize(handles[number]) for number in range(len(waves))]
    if cause is not None and not isinstance(cause, Exception):  # it is to end this process
        raise cause
    for number, report in enumerate(reports):
        if report.error is not None:
            item, text = report.error
            at = process_set.ranks[number] if process_set.ranks else number
            raise ParallelMapError(
                f"[{name}] rank {at} failed at {describe(item)}: {text}; no rank has results"
            ) from (cause if number == rank else None)
    for one, buffer in zip(waves, buffers, strict=True):
        _unpack(buffer, one, rank, reports, results)
    known = {item: spec for report in reports for item, spec in report.specs.items()}
    known |= specs
    every = range(len(owners))
    return Exchanged(
        [results[item] for item in every],
        [known[item].seconds for item in every],
        [sum(_bytes(*tensor) for tensor in known[item].tensors) for item in every],
    )


def check_result(result: object, device: torch.device) -> None:
    """Raise unless a function has returned what can be sent.

    Raises:
        TypeError: It is no tensor, nor a tuple of tensors.
        ValueError: It is elsewhere, no dense tensor, or has no memory of its own.
    """
    for tensor in result if isinstance(result, tuple) else (result,):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"the function returned a {type(tensor).__name__} (expected a torch.Tensor or a "
                "tuple of them)"
            )
        is_dense = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
        if not is_dense or tensor.device != device:
            raise ValueError(
                f"the function returned a tensor of {tensor.dtype}, layout {tensor.layout} on "
                f"{tensor.device} (expected torch.strided on {device}, not quantised or nested)"
            )
        check_moved(tensor, "what the function returned")


def _checked(result: Any, device: torch.device) -> tuple[Result, _Spec]:
    """A result in a form that can be sent, and what to say of it."""
    check_result(result, device)
    several = isinstance(result, tuple)
    leaves = [leaf.detach().resolve_conj().resolve_neg().contiguous() for leaf in _leaves(result)]
    spec = _Spec(tuple((leaf.dtype, tuple(leaf.shape)) for leaf in leaves), several, 0.0)
    return tuple(leaves) if several else leaves[0], spec


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its text fails, too
        return type(error).__name__


def _leaves(result: Result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _padding(nbytes: int) -> int:
    return -nbytes % _ALIGNED


def _pack(results: Sequence[Result], like: torch.Tensor) -> torch.Tensor:
    """Bytes of the results one after the other."""
    parts = []
    for result in results:
        for tensor in _leaves(result):
            flat = tensor.reshape(-1).view(torch.uint8)
            parts.append(flat)
            parts.append(flat.new_zeros(_padding(flat.numel())))
    return torch.cat(parts) if parts else like.new_empty(0, dtype=torch.uint8, layout=torch.strided)


def _unpack(
    buffer: torch.Tensor,
    items_of: Sequence[Sequence[int]],
    rank: int,
    reports: Sequence[_Report],
    results: dict[int, Result],
) -> None:
    """Add what other ranks have made in a wave."""
    at = 0
    for number, items in enumerate(items_of):
        for item in items:
            spec = reports[number].specs[item]
            views = []
            for dtype, shape in spec.tensors:
                size = _bytes(dtype, shape)
                views.append(buffer[at : at + size].view(dtype).reshape(shape))
                at += size + _padding(size)
            if number != rank:
                results[item] = tuple(views) if spec.several else views[0]
