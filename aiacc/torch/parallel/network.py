"""What all-gathers of tensors cost in this job, by some that are timed."""

from __future__ import annotations

import time

import torch

from aiacc import basics
from aiacc.collectives.handles import synchronize
from aiacc.collectives.objects import maxima
from aiacc.planning.cost import ALL_GATHER, Affine
from aiacc.planning.fit import fit_affine
from aiacc.process_sets import ProcessSet, rank_and_size, set_id
from aiacc.torch.ops.allgather import allgather_async

#: Bytes of the all-gathers that are timed, in total of all ranks, and how often each is.
_PROBED, _REPEATS = (1 << 12, 1 << 18, 1 << 22), 4
#: A size after one that took so long is left out.
_PROBE_S = 0.2


class Networks:
    """Costs in this job, which are measured when they are wanted for the first time."""

    def __init__(self) -> None:
        """Know nothing."""
        #: By number of the process set and kind of device.
        self._known: dict[tuple[int, str], Affine] = {}
        basics.at_init(self.forget)

    def forget(self) -> None:
        """What was measured, for another job begins."""
        self._known.clear()

    def cost(self, process_set: ProcessSet, like: torch.Tensor) -> Affine:
        """What an all-gather costs where ``like`` is, by the bytes of its result.

        Collective: every rank of the set. Blocks: for milliseconds the first time.
        """
        key = (set_id(process_set), like.device.type)
        if key not in self._known:
            self._known[key] = _measured(process_set, like)
        return self._known[key]


def _measured(process_set: ProcessSet, like: torch.Tensor) -> Affine:
    size = rank_and_size(process_set).size
    samples = []
    for nbytes in _PROBED:
        part = torch.zeros(max(nbytes // size, 1), dtype=torch.uint8, device=like.device)
        for repeat in range(_REPEATS):
            _finish(like)
            began = time.perf_counter()
            synchronize(allgather_async(part, f"parallel_map.probe.{nbytes}", process_set))
            _finish(like)
            took = time.perf_counter() - began
            (slowest,) = maxima([took], "parallel_map.probed", process_set)
            if repeat > 0:
                samples.append((float(part.numel() * size), slowest))
        if slowest > _PROBE_S:
            break
    try:
        a, b = fit_affine(samples)
    except ValueError:  # of one size, or noise: all of it is startup
        a, b = min(seconds for _, seconds in samples), 0.0
    return Affine(2 * a, 2 * b, {ALL_GATHER: (a, b)})


def _finish(like: torch.Tensor) -> None:
    if like.is_cuda:
        torch.cuda.synchronize(like.device)
