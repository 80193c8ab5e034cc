"""Memory that the core uses until an operation is done, whoever has started it."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch

from aiacc import basics
from aiacc.exceptions import CollectiveError

#: By handle. Were the memory freed with its owner, the core would write to that of others.
held: dict[int, Sequence[torch.Tensor]] = {}


class Flushable(Protocol):
    """What has parameters under way."""

    def flush(self) -> None:
        """Wait for them; raises CollectiveError."""

    def has_one_of(self, tensors: Sequence[object]) -> bool:
        """Whether one of these is a parameter of this."""

    def overwrite(self) -> None:
        """Wait for them, whatever comes of it: others take their place."""


_owners: weakref.WeakSet[Flushable] = weakref.WeakSet()


def register(owner: Flushable) -> None:
    """Flush ``owner`` before the runtime ends, and before parameters are broadcast."""
    _owners.add(owner)


def overwrite(tensors: Sequence[object]) -> None:
    """Wait until nothing is under way to the parameters among these, which are about to be written.

    Blocks: until every rank has ended the step that gathers them.
    """
    for owner in list(_owners):
        if owner.has_one_of(tensors):
            owner.overwrite()


def _flush_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(CollectiveError):
            owner.flush()


# Other ranks may still need this one's part of the parameters.
basics.before_shutdown(_flush_all)
# A child, such as a worker of a DataLoader, has none of the threads that would bring the values.
os.register_at_fork(before=_flush_all)
