"""What relative paths mean, which is another thing in each working directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

#: Bytes that a name in a folder has at most.
_MOST_BYTES = 255
#: The working directory itself, as the first name of a path; no file is called so.
_HERE = "./"


class Places:
    """The working directory, as it is when this is made."""

    def __init__(self) -> None:
        self._names = {os.pardir, _HERE}
        with contextlib.suppress(OSError):  # it was removed
            self._names.update(path.name for path in Path().iterdir())
        self._known: dict[str, str] = {}

    def of(self, values: Iterable[Any]) -> str:
        """Where relative paths lead to by their first names, without links; "" if nothing is there.

        Paths below a root that is given elsewhere lead nowhere from here, and so do most texts that
        are no paths. Files of one folder that two working directories have links to are the same.

        Args:
            values: Anything; only paths, and texts and bytes that may be one, lead somewhere.
        """
        firsts = {_first_of(value) for value in values} & self._names
        for first in firsts - self._known.keys():
            self._known[first] = os.path.realpath(first)
        return "\n".join(sorted(map(self._known.__getitem__, firsts)))


def _first_of(value: Any) -> str:
    """The first name of a path; "" of anything else, and of a full stop that is no `Path`."""
    if type(value) is str:
        return value.removeprefix("./").partition("/")[0]
    if type(value) is bytes:
        return os.fsdecode(value[: _MOST_BYTES + 3].removeprefix(b"./").partition(b"/")[0])
    if isinstance(value, PurePath):
        return value.parts[0] if value.parts else _HERE
    return ""
