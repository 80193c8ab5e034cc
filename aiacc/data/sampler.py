"""A sampler whose position in an epoch can be saved, and taken up by another number of ranks."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiacc import arguments, basics
from aiacc.data import orders
from aiacc.data.orders import Epoch, Indices, Part, Shard, Topology


def topology_of_job() -> Topology:
    """The nodes and ranks of the job, or one rank alone before ``init``.

    Raises:
        ValueError: The nodes have different numbers of ranks.
    """
    if not basics.is_initialized():
        return Topology()
    if not basics.is_homogeneous():
        raise ValueError(
            "nodes with different numbers of ranks (expected equal ones, or topology=); give "
            "aiacc.data.Topology the ranks of each node"
        )
    sizes = (basics.local_size(),) * basics.cross_size()
    return Topology(sizes, basics.cross_rank(), basics.local_rank())


def place_of(topology: Topology | None) -> Topology:
    """What was given as ``topology=``, or where the job says that this rank is.

    Raises:
        ValueError: No topology; or see `topology_of_job`.
    """
    if topology is None:
        return topology_of_job()
    if not isinstance(topology, Topology):
        raise ValueError(
            f"topology={topology!r} (expected aiacc.data.Topology(ranks of each node, node, local "
            "rank))"
        )
    return topology


def check_job(topology: Topology) -> None:
    """Raise ValueError unless the job has the ranks of a topology."""
    size = basics.size() if basics.is_initialized() else 1
    if size != topology.size:
        raise ValueError(
            f"a topology of {topology.size} ranks in a job of {size} (expected equally many); call "
            "init() before, or choose another shard="
        )


class ShardSampler:
    """Indices for one rank's DataLoader. Made by `CachedDataset.sampler`.

    It is deterministic: the same seed and epoch give the same order, whatever was read before.

    Collective: no message is sent; but every rank needs the same arguments, epochs and states.
    """

    def __init__(
        self,
        epoch: Epoch,
        topology: Topology,
        fingerprint: str,
        through: Callable[[Epoch, Sequence[Indices]], Iterator[int]],
        at_epoch: Callable[[int], object],
        wants_everyones: bool = False,
    ) -> None:
        """For internal use.

        Args:
            epoch: The first pass.
            topology: Where this rank is.
            fingerprint: The dataset's.
            through: Gives this rank's indices out of the lists that it gets; may fetch what comes.
            at_epoch: Called by `set_epoch` with the epoch that ends, if any sample was read in it.
            wants_everyones: Whether ``through`` gets the lists of all ranks, and not of this one
                alone.
        """
        self._epoch = epoch
        self._topology = topology
        self._fingerprint = fingerprint
        self._through = through
        self._at_epoch = at_epoch
        self._ranks = range(topology.size) if wants_everyones else (topology.rank,)
        self._parts: list[Part] = []
        self._taken = 0
        self._is_over = False
        self._known: tuple[Epoch, list[Part], list[Indices]] | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._epoch.number

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. A state that was loaded is kept if it is of this epoch.

        Logs a line about the one before to "aiacc.data".

        Raises:
            TypeError: ``epoch`` is no whole number.
            ValueError: It is negative.
        """
        arguments.check({"epoch": epoch})
        if epoch == self._epoch.number:
            return
        self._at_epoch(self._epoch.number)
        self._epoch = dataclasses.replace(self._epoch, number=epoch)
        self._parts, self._taken, self._is_over = [], 0, False

    def __len__(self) -> int:
        """How many indices this rank has in this epoch, or had left when a state was loaded."""
        return len(self._lists()[0])

    def __iter__(self) -> Iterator[int]:
        if self._taken or self._is_over:  # the whole epoch again, as with torch's samplers
            self._parts = []
        self._taken, self._is_over = 0, False
        for index in self._through(self._epoch, self._lists()):
            self._taken += 1
            yield index
        self._is_over = True

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The position in the epoch, equal on all ranks; numbers, lists and text.

        Args:
            consumed: Samples that this rank has used since the iteration began. None: as many as
                were taken from the sampler; a DataLoader with workers takes more than it has
                given, so give ``batches * batch_size`` there (torchdata's StatefulDataLoader knows
                by itself).

        Raises:
            ValueError: ``consumed`` is no number of samples.
        """
        taken = self._taken if consumed is None else _samples(consumed)
        now = [Part(self._topology.local_sizes, taken)] if taken else []
        state = orders.encode_state(self._epoch, [*self._parts, *now])
        return {"fingerprint": self._fingerprint, **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the ranks were that saved the state, however many these were.

        What they have used does not come again in this epoch; the rest is divided among the ranks
        that there are now.

        Raises:
            ValueError: It is no state of a sampler, or one of another dataset.
        """
        if not isinstance(state, dict):
            raise ValueError(f"a state {state!r} (expected a dict that state_dict has returned)")
        found = dict(state)
        if found.pop("fingerprint", None) != self._fingerprint:
            raise ValueError(
                f"a state of dataset {state.get('fingerprint')!r} (expected "
                f"{self._fingerprint!r}); load it with an equal dataset, or give both the same "
                "fingerprint="
            )
        epoch, parts = orders.decode_state(found)
        if epoch.length != self._epoch.length:
            raise ValueError(f"a state of {epoch.length} samples (expected {self._epoch.length})")
        self._epoch, self._parts = epoch, parts
        self._taken, self._is_over = 0, False

    def _lists(self) -> list[Indices]:
        known = self._known
        if known is None or known[:2] != (self._epoch, self._parts):
            sizes = self._topology.local_sizes
            found = orders.lists(self._epoch, sizes, self._parts, self._ranks)
            known = self._known = (self._epoch, list(self._parts), found)
        return known[2]


def _samples(consumed: int) -> int:
    try:
        number = operator.index(consumed)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(
            f"consumed={consumed!r} (expected how many samples this rank has used, 0 or more)"
        )
    return number


def first_epoch(
    length: int, shard: Shard, shuffle: bool, seed: int, drop_last: bool, reshard_every: int
) -> Epoch:
    """Epoch 0."""
    return Epoch(length, seed, 0, shard, shuffle, drop_last, reshard_every)
