"""Calls of public functions with one wrong argument each; which are wrong follows from its name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiacc import arguments

VALUES: dict[str, Any] = {"None": None, "5": 5, "x": "x", "[0]": [0], "-1": -1, "1.5": 1.5}
VALUES |= {"True": True, "object": object(), "nan": math.nan, "inf": math.inf, "bytes": b"x"}
#: Which of them are right for what the table lacks; "any": all, or a framework refuses others.
_RIGHT = """
any: self obj session comm device params learning_rate filepath
None: costs grad_scaler topology is_block disk plan local_layers model
None bytes: named_parameters
None: custom_objects custom_optimizers
5: k num_features factor_every inverse_every number lanes
5 1.5: loss_scale damping total warm_up first last begin end
5 1.5 inf: warmup_epochs
None 5 1.5: kl_clip loss_terms
None 5 1.5 inf: steps_per_epoch
True: affine track_running_stats staircase legacy_opts momentum_correction verbose
5 -1 1.5: multiplier start_epoch
5 -1 1.5 inf: initial_lr
5 -1 1.5 nan inf: predicted_s bound_s
None 5 -1 1.5 nan inf: end_epoch
5 -1 1.5 True: gradient_predivide_factor
5 1.5 True: bucket_bytes
5 -1: num_rank
None [0]: cost
None [0] bytes: splits
None x [0] bytes: local_variables
None 5: memory groups
None x: fingerprint
x [0] bytes: source dataset
x: compression planner
[0]: ranks_or_comm
"""
RIGHT = {
    name: good
    for good, _, names in (line.partition(":") for line in _RIGHT.split("\n"))
    for name in names.split()
}


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name; those of a class are its constructor's, whatever its metaclass says."""
    made = function.__init__ if isinstance(function, type) else function
    found = inspect.signature(made).parameters.items()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in found if one.kind not in several}


def public(front: Any, skipped: tuple[str, ...]) -> list[tuple[Any, str]]:
    """The functions and classes of a front-end that have arguments."""
    return [
        (front, name)
        for name in front.__all__
        if name not in skipped and callable(one := getattr(front, name))
        if inspect.isroutine(one) or (isinstance(one, type) and inspect.isfunction(one.__init__))
        if not (isinstance(one, type) and issubclass(one, Exception)) and parameters_of(one)
    ]


def refused(name: str, value: object) -> bool:
    """Whether the table refuses a value."""
    rule = arguments.RULES[name]
    return not (rule.is_kind(value) and rule.fits(value))


def unexplained(
    function: Callable[..., Any], given: Mapping[str, Any], right: Mapping[str, str]
) -> list[str]:
    """The calls of ``function`` with a wrong argument that are not refused as they should be.

    An error is a TypeError or a ValueError. It has the words of `aiacc.arguments`, or names the
    argument or the function, the value or its type, and what is expected.

    Args:
        function: What is called.
        given: Right arguments, those that ``function`` has not among them.
        right: Which of `VALUES` are right, where it is not the table that says so.
    """
    parameters = parameters_of(function)
    given = {name: value for name, value in given.items() if name in parameters}
    return [text for name in parameters for text in _unexplained(function, name, given, right)]


def _unexplained(
    function: Callable[..., Any], name: str, given: dict[str, Any], right: Mapping[str, str]
) -> Iterator[str]:
    by_table = name in arguments.RULES and name not in right
    good = "" if by_table else right.get(name, RIGHT.get(name, ""))
    for label, value in VALUES.items():
        if good == "any" or label in good.split() or (by_table and not refused(name, value)):
            continue
        try:
            function(**{**given, name: value})
            said = "nothing"
        except (TypeError, ValueError) as error:
            said = str(error)
            shown = [value, *(value if isinstance(value, list) else ())]
            verb = function.__name__.replace("_async", "").rstrip("_")
            is_named = name.rstrip("s") in said.lower() or verb in said
            is_shown = any(repr(one) in said or type(one).__name__ in said for one in shown)
            if by_table and said == arguments.RULES[name].refusal(name, value):
                continue
            if is_named and is_shown and "(expected" in said and not by_table:
                continue
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        yield f"{function.__qualname__}({name}={label}): {said:.300}"
