"""Checkpoints of K-FAC, which hold for any number of ranks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from aiacc import arguments
from aiacc.kfac.packing import pack, unpack
from aiacc.torch.kfac.execution import Execution
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.ranks import Ranks
from aiacc.torch.mpi_ops import allgather

VERSION = 1


class Checkpoint:
    """Saves and loads the means of some layers."""

    def __init__(self, layers: Sequence[FactoredModule]) -> None:
        """Of these."""
        self._layers = list(layers)
        #: The number of a step, and the means after the one before it.
        self._consolidated: tuple[int, dict[str, torch.Tensor]] | None = None

    def consolidate(self, step: int, execution: Execution | None, ranks: Ranks) -> None:
        """Bring all means here. Collective, blocks."""
        self._consolidated = step, _gathered(self._layers, execution, ranks)

    def state(self, step: int, execution: Execution | None, ranks: Ranks) -> dict[str, Any]:
        """What `load` takes. ValueError if means are elsewhere, and were not consolidated."""
        if self._consolidated is not None and self._consolidated[0] == step:
            factors = self._consolidated[1]
        elif execution is None or not execution.divided:
            factors = _gathered(self._layers, None, ranks)
        else:
            raise ValueError(
                "state_dict() of factors that are divided among the ranks (expected "
                "consolidate_state_dict() on every rank after the last step); call that before"
            )
        return {"version": VERSION, "step": step, "factors": factors}

    def load(self, state: dict[str, Any]) -> int:
        """Take all means, and drop inverses; the number of the step.

        Raises:
            ValueError: A state of other layers, or none of K-FAC.
        """
        _put(self._layers, state)
        self._consolidated = None
        return int(state["step"])


def _gathered(
    layers: Sequence[FactoredModule], execution: Execution | None, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """The mean of every factor that has one, in host memory.

    Collective: every rank. Blocks.
    """
    factors = [factor for layer in layers for factor in layer.factors]
    found = {f.name: f.mean.clone().cpu() for f in factors if f.mean is not None}
    if execution is None or ranks.alone:
        return found
    owned: dict[int, list[Factor]] = {rank: [] for rank in range(ranks.size)}
    for factor in factors:
        owner = execution.holder(factor.name)
        if owner is not None:
            owned[owner].append(factor)
    if not any(owned.values()):
        return found
    widest = max((factor.dtype for factor in factors), key=lambda dtype: dtype.itemsize)
    # A first element says whether there is a mean.
    elements = sum(1 + factor.packed for factor in owned[ranks.index])
    flat = torch.zeros(elements, dtype=widest, device="cpu")
    begin = 0
    for factor in owned[ranks.index]:
        end = begin + 1 + factor.packed
        if factor.mean is not None:
            flat[begin] = 1.0
            pack([found[factor.name].to(widest)], flat[begin + 1 : end])
        begin = end
    everyones = allgather(flat, f"{ranks.name}.state", ranks.process_set)
    begin = 0
    for rank in range(ranks.size):
        for factor in owned[rank]:
            end = begin + 1 + factor.packed
            if rank != ranks.index and everyones[begin] > 0:
                mean = torch.empty(factor.shape, dtype=widest, device="cpu")
                unpack(everyones[begin + 1 : end], [mean])
                found[factor.name] = mean.to(factor.dtype)
            begin = end
    return {factor.name: found[factor.name] for factor in factors if factor.name in found}


def _problem_of(state: Any) -> str:
    """Why this is no state; "": it is one."""
    if not isinstance(state, dict) or state.get("version") != VERSION:
        return f"without version {VERSION}"
    step: Any = state.get("step")
    factors = state.get("factors")
    if not (arguments.is_whole(step) and operator.index(step) >= 0):
        return f"with step={step!r:.100}"
    if not isinstance(factors, dict):
        return f"with factors={factors!r:.100}"
    strange = [name for name, mean in factors.items() if not isinstance(mean, torch.Tensor)]
    return f"with a factor {strange[0]!r} that is no tensor" if strange else ""


def _put(layers: Sequence[FactoredModule], state: dict[str, Any]) -> None:
    """Give every factor its mean, on every rank; inverses are computed anew.

    Raises:
        ValueError: A state of other layers, or none of K-FAC.
    """
    problem = _problem_of(state)
    if problem:
        raise ValueError(f"state_dict {problem} (expected what KFAC.state_dict() returned)")
    factors = {factor.name: factor for layer in layers for factor in layer.factors}
    for name, mean in state["factors"].items():
        factor = factors.get(name)
        if factor is None or factor.shape != tuple(mean.shape):
            shape = "no such factor" if factor is None else f"one of shape {factor.shape}"
            raise ValueError(
                f"state_dict has factor {name!r} of shape {tuple(mean.shape)} (expected those of "
                f"the model, which has {shape}); load it into the same model and skip_layers"
            )
    for name, factor in factors.items():
        factor.clear()
        factor.inverse = factor.mean = None
        if name in state["factors"]:
            mean = state["factors"][name].to(factor.device, factor.dtype)
            factor.mean = mean.clone(memory_format=torch.contiguous_format)
