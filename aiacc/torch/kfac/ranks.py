"""The ranks among which K-FAC is divided, by their index in the process set."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.process_sets import (
    ProcessSet,
    form_process_set,
    has_company,
    leave_process_set,
    rank_and_size,
)


class Ranks:
    """This rank and its company.

    Attributes:
        process_set: What all of them are.
        index: Of this one; 0 if it is alone.
        size: How many there are; 1 where the process set has no other, or this rank is no member.
        name: Of process sets that are formed, equal on all of them.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        """Of a set that is registered."""
        self.process_set = process_set
        self.index, self.size = 0, 1
        if has_company(process_set):
            self.index, self.size = rank_and_size(process_set)
        self.name = ""
        self._formed: dict[tuple[int, ...], ProcessSet] = {}

    @property
    def alone(self) -> bool:
        """Whether nothing is sent."""
        return self.size == 1

    def among(self, members: Sequence[int]) -> ProcessSet:
        """The process set of some of the ranks.

        Collective: these ranks, of which this is one, when it is the first time for them.
        Blocks: then, until they are connected.
        """
        key = tuple(sorted(members))
        if key == tuple(range(self.size)):
            return self.process_set
        if key not in self._formed:
            everyone = self.process_set.ranks or range(self.size)
            name = f"{self.name}.{'.'.join(map(str, key))}"
            self._formed[key] = form_process_set(name, [everyone[index] for index in key])
        return self._formed[key]

    def leave(self) -> None:
        """Give up what `among` has formed. Others may still be in it."""
        for formed in self._formed.values():
            leave_process_set(formed)
        self._formed.clear()
