"""JSON that somebody else wrote: it has the declared types, or reading it raises ValueError."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union

#: Whole numbers beyond this fit into nothing that the core takes.
_LARGEST = 1 << 63


def read_object(data: bytes | str) -> dict[str, Any]:
    """The object that ``data`` holds. Raises ValueError for everything else."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__} (expected an object)")
    return value


def check_fields(kind: type, fields: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``fields`` are fields of ``kind``, each of its declared type.

    Args:
        kind: A dataclass or NamedTuple.
        fields: By name; those with a default may be missing.
    """
    hints = _hints(kind)
    for name, value in fields.items():
        if name not in hints:
            raise ValueError(f"unknown field {name[:40]!r}")
        if not _fits(value, hints[name]):
            shown = repr(value)
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            raise ValueError(f"{name} is {shown} (expected {_name_of(hints[name])})")


@functools.lru_cache
def _hints(kind: type) -> dict[str, Any]:
    """Once for each kind: there may be thousands of rows."""
    return typing.get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin in (dict, Mapping):
        key, content = arguments
        return isinstance(value, dict) and all(
            _fits(one, key) and _fits(other, content) for one, other in value.items()
        )
    if origin in (list, Sequence):
        return isinstance(value, list) and all(_fits(one, arguments[0]) for one in value)
    if hint is str:  # a lone surrogate is valid JSON, but no text that can be passed on
        return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
    if hint is int:
        return type(value) is int and -_LARGEST <= value < _LARGEST
    return type(value) is hint


def _name_of(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint)
