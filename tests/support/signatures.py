"""How the tables of Horovod's names write a signature."""

from __future__ import annotations

import inspect
from typing import Any

from aiacc.collectives.reduce_ops import name_of_op
from aiacc.process_sets import global_process_set


def text_of(function: Any) -> str:
    """The signature as the tables write it, without what is keyword-only."""
    kinds = inspect.Parameter
    parts = []
    # A class is called as its __init__ is; some have a __new__ that takes anything.
    is_class = isinstance(function, type)
    signature = inspect.signature(function.__init__ if is_class else function)
    for parameter in list(signature.parameters.values())[is_class:]:
        if parameter.kind is kinds.KEYWORD_ONLY:
            assert parameter.default is not kinds.empty, f"{parameter.name} must be optional"
            continue
        assert parameter.kind is not kinds.POSITIONAL_ONLY, parameter.name
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is kinds.empty else f"={_shown(parameter)}"
        parts.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def _shown(parameter: inspect.Parameter) -> str:
    """The default as the tables write it."""
    if parameter.default is global_process_set:
        return "global_process_set"
    if getattr(parameter.default, "__name__", "") == "NoneCompressor":
        return "Compression.none"
    if parameter.name == "op" and parameter.default is not None:
        return name_of_op(parameter.default)
    return repr(parameter.default)
