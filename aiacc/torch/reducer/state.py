"""Whether something is a state of `Feedback`."""

from __future__ import annotations

import math
from typing import Any

import torch

from aiacc.torch.reducer.kept import KINDS

_KEYS = ("kept", "factors", "scale", "steps", "flushing", "uneven", "rank_and_size")
_WHENCE = "what state_dict() or gathered_state_dict() has given"


def check_state(state: Any) -> None:
    """Whether ``state`` has all that a state of feedback has, of the types and ranges that it has.

    Raises:
        ValueError: It has not.
    """
    missing = [key for key in _KEYS if not isinstance(state, dict) or key not in state]
    if missing:
        raise ValueError(
            f"a state of feedback without {', '.join(missing)} (expected {_WHENCE}); load that of "
            "optimizer.feedback"
        )
    kept, factors, scale, steps, flushing, uneven, place = (state[key] for key in _KEYS)
    if not isinstance(kept, dict) or sorted(kept) != sorted(KINDS):
        found = sorted(map(str, kept)) if isinstance(kept, dict) else kept
        raise ValueError(f"'kept' of a state: {found} (expected {sorted(KINDS)}: {_WHENCE})")
    for name, tensors in (*kept.items(), ("factors", factors)):
        if not isinstance(tensors, dict):
            raise ValueError(f"{name!r} of a state: {tensors!r} (expected tensors by name)")
        for key, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor) or not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"{name!r} of {key!r} of a state: {tensor} (expected a tensor of finite "
                    "numbers); load another state"
                )
    if not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ValueError(f"'scale' of a state: {scale!r} (expected a number more than 0)")
    if not isinstance(steps, dict) or not all(isinstance(step, int) for step in steps.values()):
        raise ValueError(f"'steps' of a state: {steps!r} (expected whole numbers by name)")
    if not isinstance(flushing, list) or not all(isinstance(name, str) for name in flushing):
        raise ValueError(f"'flushing' of a state: {flushing!r} (expected a list of names)")
    if not isinstance(uneven, bool):
        raise ValueError(f"'uneven' of a state: {uneven!r} (expected True or False)")
    if place is not None and not (isinstance(place, list | tuple) and len(place) == 2):
        raise ValueError(f"'rank_and_size' of a state: {place!r} (expected two numbers, or None)")
