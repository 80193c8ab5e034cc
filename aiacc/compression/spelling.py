"""Settings as users write them, ``int8:block=512``, and back. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

from aiacc import arguments


class Setting(Protocol):
    """A frozen dataclass with a name; its other fields are numbers, words, true or false."""

    @property
    def name(self) -> str:
        """What comes before the colon."""
        ...


T = TypeVar("T", bound=Setting)


def spell(setting: Setting, known: Mapping[str, Setting]) -> str:
    """The shortest text that `parse` reads as ``setting``: defaults are left out."""
    usual = options_of(known[setting.name])
    changed = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in options_of(setting).items()
        if value != usual[key]
    ]
    return ":".join([setting.name, *([",".join(changed)] if changed else [])])


def parse(text: str, known: Mapping[str, T], what: str) -> T:
    """The setting that a text means.

    Args:
        text: A name, or ``name:option=value,option=value``.
        known: By name, settings with all options at their defaults.
        what: What the settings are, for errors.

    Raises:
        ValueError: Another name, another option, or a value that the option does not take.
    """
    arguments.check({"text": text})
    name, colon, options = text.strip().partition(":")
    if name not in known:
        raise ValueError(
            f"{what} {text!r} (expected one of {', '.join(known)}; options follow a colon, as in "
            "name:option=value)"
        )
    usual = options_of(known[name])
    values: dict[str, Any] = {}
    for option in options.split(",") if colon else []:
        key, _, value = (side.strip() for side in option.partition("="))
        if ":" in value:
            raise ValueError(
                f"{what} {text!r}: {option} (expected a comma between options, as in "
                "name:option=value,option=value)"
            )
        if key not in usual:
            takes = f"expected {', '.join(usual)}" if usual else f"{name} takes none"
            raise ValueError(f"{what} {text!r}: option {key!r} ({takes})")
        if key in values:
            raise ValueError(f"{what} {text!r}: option {key!r} comes twice (expected once)")
        values[key] = _value(f"{what} {text!r}: {key}={value}", value, usual[key])
    return dataclasses.replace(known[name], **values)  # type: ignore[type-var]


def make_plain(setting: object) -> None:
    """Let numbers of a frozen dataclass, of NumPy for example, be Python's own.

    They then are spelled alike, and computed with in float64, as the core does.
    """
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]
        value = getattr(setting, field.name)
        if not isinstance(value, bool) and isinstance(value, Real):
            own = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(setting, field.name, own)


def options_of(setting: Setting) -> dict[str, Any]:
    """Fields but the name, with their values."""
    fields = dataclasses.fields(setting)  # type: ignore[arg-type]
    return {field.name: getattr(setting, field.name) for field in fields if field.name != "name"}


def _value(at: str, text: str, usual: object) -> object:
    """``text`` as the type of ``usual``."""
    if isinstance(usual, bool):
        if text not in ("true", "false"):
            raise ValueError(f"{at} (expected true or false)")
        return text == "true"
    if isinstance(usual, str):
        return text
    try:
        return int(text) if isinstance(usual, int) else float(text)
    except ValueError as error:
        number = "a whole number" if isinstance(usual, int) else "a number"
        raise ValueError(f"{at} (expected {number})") from error
