"""The size of the core's units, while plans for larger ones are tried."""

from __future__ import annotations

from aiacc import _core, basics
from aiacc.process_sets import ProcessSet, has_company


class Units:
    """How many times as large the units of this job are as they were without a plan."""

    def __init__(self) -> None:
        self._growth, self._bytes = 1, 0
        #: Who has let them grow and alone may change them; None: nobody, or one that is gone.
        self._owner: object | None = None
        basics.at_init(self._forget)

    def grow(self, growth: int, owner: object, process_set: ProcessSet) -> None:
        """Let the first rank propose units of another size, which all take on in one round.

        Nothing happens while they are as another ``owner`` wants them.
        """
        if self._owner not in (None, owner):
            return
        self._owner = owner if growth > 1 else None
        if growth != self._growth and has_company(process_set) and process_set.rank() == 0:
            now = _core.stats()
            if self._growth == 1:
                self._bytes = int(now["unit_bytes"])
            _core.propose_parameters(self._bytes * growth, int(now["lanes"]))
        self._growth = growth

    def leave(self, owner: object) -> None:
        """Let the next one that plans change units that ``owner`` has let grow."""
        if self._owner is owner:
            self._owner = None

    def _forget(self) -> None:
        """In a job that starts anew, with units of its own."""
        self._growth, self._owner = 1, None


units = Units()
