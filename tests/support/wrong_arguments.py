"""Calls with one wrong argument each: what is wrong is found by the names of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiacc import arguments

VALUES: dict[str, Any] = {"None": None, "5": 5, "x": "x", "[0]": [0], "-1": -1, "1.5": 1.5}
VALUES |= {"True": True, "object": object()}
#: Which of them are right for what the table lacks; "any": all, or a framework refuses others.
RIGHT = {
    **dict.fromkeys(("obj", "session", "comm", "params", "device", "learning_rate"), "any"),
    **dict.fromkeys(("axis", "kwargs", "filepath"), "any"),
    **dict.fromkeys(("costs", "grad_scaler", "topology", "named_parameters", "is_block"), "None"),
    **dict.fromkeys(("disk", "plan", "local_layers", "custom_objects"), "None"),
    **dict.fromkeys(("custom_optimizers", "model"), "None"),
    **dict.fromkeys(("k", "num_features", "factor_every", "inverse_every", "number"), "5"),
    **dict.fromkeys(("loss_scale", "damping", "warmup_epochs"), "5 1.5"),
    **dict.fromkeys(("kl_clip", "loss_terms"), "None 5 1.5"),
    **dict.fromkeys(("total", "warm_up", "first", "last", "begin", "end"), "5 1.5"),
    **dict.fromkeys(("affine", "track_running_stats", "staircase", "legacy_opts"), "True"),
    **dict.fromkeys(("initial_lr", "multiplier", "start_epoch"), "5 -1 1.5"),
    "momentum_correction": "True",
    "bucket_bytes": "5 1.5 True",
    "compression": "x",
    "gradient_predivide_factor": "5 -1 1.5 True",
    "splits": "None [0]",
    "cost": "None [0]",
    "source": "x [0]",
    "dataset": "x [0]",
    "ranks_or_comm": "[0]",
    "memory": "None 5",
    "steps_per_epoch": "None 5 1.5",
    "groups": "None 5",
    "end_epoch": "None 5 -1 1.5",
    "verbose": "True",
    "self": "any",
    "planner": "x",
    "local_variables": "None x [0]",
}


def unexplained(function: Callable[..., Any], given: Mapping[str, Any], **right: str) -> list[str]:
    """The calls of ``function`` with a wrong argument that are not refused as they should be.

    An error is a TypeError or a ValueError. It has the words of `aiacc.arguments`, or names the
    argument or the function, the value or its type, and what is expected.

    Args:
        function: What is called.
        given: Right arguments.
        **right: Which of `VALUES` are right, where it is not the table that says so.
    """
    return list(_unexplained(function, given, right))


def refused(name: str, value: object) -> bool:
    """Whether the table refuses a value."""
    rule = arguments.RULES[name]
    return not (rule.is_kind(value) and rule.fits(value))


def _unexplained(
    function: Callable[..., Any], given: Mapping[str, Any], right: Mapping[str, str]
) -> Iterator[str]:
    # Layers of Keras have the signature of their base class.
    signature = inspect.signature(function.__init__ if isinstance(function, type) else function)
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        good = right.get(name, "" if name in arguments.RULES else RIGHT.get(name, "")).split()
        by_table = name in arguments.RULES and name not in right
        for label, value in VALUES.items():
            if label in good or good == ["any"] or (by_table and not refused(name, value)):
                continue
            try:
                function(**{**given, name: value})
                said = "nothing"
            except (TypeError, ValueError) as error:
                said = str(error)
                if by_table and said == arguments.RULES[name].refusal(name, value):
                    continue
                is_named = name.rstrip("s") in said.lower() or function.__name__ in said
                shown = [value, *(value if isinstance(value, list) else ())]
                is_shown = any(repr(one) in said or type(one).__name__ in said for one in shown)
                if is_named and is_shown and "(expected" in said and not by_table:
                    continue
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            yield f"{function.__qualname__}({name}={label}): {said:.300}"
