"""The state of an optimizer, whole as a plain one has it, and in the pieces of the ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch


class Form(NamedTuple):
    """Of a parameter, and of its state."""

    shape: tuple[int, ...]
    #: Those of memory without gaps.
    strides: tuple[int, ...]


class Piece(NamedTuple):
    """A part of a parameter, in elements of its memory."""

    #: Number of the parameter: its position in all parameter groups.
    parameter: int
    begin: int
    end: int


#: What an optimizer keeps, by number of the parameter.
State: TypeAlias = dict[int, dict[str, Any]]

#: Tensors that torch's optimizers keep once per parameter. Only where the parameter is a scalar
#: itself are they not told by their shape.
_COMMON = {"step", "eta", "mu", "mu_product"}


def cut(
    state_dict: Mapping[str, Any], pieces: Sequence[Sequence[Piece]], forms: Sequence[Form]
) -> Any:
    """The ``state_dict`` of an optimizer whose parameters are ``pieces``, by parameter group.

    Args:
        state_dict: That of the whole parameters, whose ``forms`` are given.
        pieces: For each group those that this rank has; numbered in this order in the result.
        forms: Of all parameters, by number.

    Raises:
        ValueError: ``state_dict`` is not one of these parameters.
    """
    groups = state_dict["param_groups"]
    names = [name for group in groups for name in group["params"]]
    if len(groups) != len(pieces) or len(names) != len(forms):
        raise ValueError(
            f"state_dict of {len(groups)} parameter groups with {len(names)} parameters (expected "
            f"{len(pieces)} with {len(forms)}); load that of an optimizer of the same model"
        )
    state: State = {}
    cut_groups = []
    number = 0
    for group, of_group in zip(groups, pieces, strict=True):
        first = number
        for piece in of_group:
            entries = state_dict["state"].get(names[piece.parameter])
            if entries:
                form = forms[piece.parameter]
                state[number] = {k: _part(k, v, piece, form) for k, v in entries.items()}
            number += 1
        cut_groups.append({**group, "params": list(range(first, number))})
    return {**state_dict, "state": state, "param_groups": cut_groups}


def join(
    states: Sequence[State], pieces: Sequence[Sequence[Piece]], forms: Sequence[Form]
) -> State:
    """The state of whole parameters in host memory: the inverse of `cut`.

    Args:
        states: Of every rank, in host memory, by the number of the piece.
        pieces: Of every rank, in the order of these numbers.
        forms: Of all parameters, by number.
    """
    whole: State = {}
    for state, of_rank in zip(states, pieces, strict=True):
        for number, piece in enumerate(of_rank):
            form = forms[piece.parameter]
            for key, value in state.get(number, {}).items():
                entries = whole.setdefault(piece.parameter, {})
                if isinstance(value, torch.Tensor) and value.shape == (piece.end - piece.begin,):
                    if key not in entries:
                        entries[key] = torch.empty_strided(
                            form.shape, form.strides, dtype=value.dtype, device="cpu"
                        )
                    flat(entries[key])[piece.begin : piece.end] = value
                else:
                    entries.setdefault(key, value)
    return dict(sorted(whole.items()))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps, in the order of its memory; shares it."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _part(key: str, value: Any, piece: Piece, form: Form) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if tuple(value.shape) != form.shape or (form.shape == () and key in _COMMON):
        return value.clone()  # optimizers add to it in place
    if tuple(value.stride()) != form.strides:
        shaped = torch.empty_strided(
            form.shape, form.strides, dtype=value.dtype, device=value.device
        )
        value = shaped.copy_(value)
    return flat(value)[piece.begin : piece.end].clone()
