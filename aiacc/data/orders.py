"""Which sample comes when, on which rank: shuffles, shards, and what is left of an epoch. Pure.

Every rank computes the same from the same few numbers, so nothing is sent. Ranks are numbered node
by node here, whatever their numbers in the job are.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiacc import arguments

Shard = Literal["replicas", "node", "neighbour"]
SHARDS = ("replicas", "node", "neighbour")
Indices: TypeAlias = NDArray[np.int64]
#: Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, section 5), a mixer of 64 bits.
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
#: Seeds of shards lie apart from those of epochs.
_SHARDS_EPOCH = 1 << 40


@dataclass(frozen=True)
class Topology:
    """The ranks of each node, and which one this process is."""

    local_sizes: tuple[int, ...] = (1,)
    node: int = 0
    local_rank: int = 0

    def __post_init__(self) -> None:
        sizes, node, local = self.local_sizes, self.node, self.local_rank
        fits = isinstance(sizes, list | tuple) and all(
            map(arguments.is_whole, (*sizes, node, local))
        )
        if not (fits and 0 <= node < len(sizes) and min(sizes) > 0 and 0 <= local < sizes[node]):
            raise ValueError(
                f"local_sizes={sizes!r:.100}, node={node!r:.100}, local_rank={local!r:.100} "
                "(expected one of the nodes, and one of the ranks that it has)"
            )

    @property
    def size(self) -> int:
        """Ranks of all nodes."""
        return sum(self.local_sizes)

    @property
    def rank(self) -> int:
        """Number of this process, node by node."""
        return sum(self.local_sizes[: self.node]) + self.local_rank

    @property
    def nodes(self) -> Indices:
        """The node of each rank."""
        return np.repeat(np.arange(len(self.local_sizes)), self.local_sizes)


@dataclass(frozen=True)
class Epoch:
    """One pass over a dataset."""

    length: int
    seed: int
    number: int
    shard: Shard
    shuffle: bool
    #: Whether what cannot be divided equally is left out; it is filled up by repetition if not.
    drop_last: bool
    #: Epochs after which samples are divided among the nodes anew; 0: never.
    reshard_every: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "number", "reshard_every"):
            _put_whole(self, name, 0, _SHARDS_EPOCH)
        _put_whole(self, "seed", -math.inf, math.inf)
        if self.shard not in SHARDS:
            raise ValueError(f"shard={self.shard!r} (expected one of {', '.join(SHARDS)})")
        for name in ("shuffle", "drop_last"):
            if getattr(self, name) not in (True, False):
                raise ValueError(f"{name}={getattr(self, name)!r} (expected True or False)")


@dataclass(frozen=True)
class Part:
    """A part of an epoch that is behind: so many samples on each rank of so many nodes."""

    local_sizes: tuple[int, ...]
    taken: int

    def __post_init__(self) -> None:
        _put_whole(self, "taken", 0, math.inf)
        sizes = self.local_sizes
        if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError(f"nodes with {list(sizes)} ranks (expected one or more on each)")


def shuffled(length: int, seed: int, epoch: int) -> Indices:
    """A permutation of 0 to ``length`` - 1, the same on every machine and with every NumPy."""
    begin = np.array([seed % (1 << 64)], np.uint64)
    _mix(begin)
    begin += np.uint64(epoch)
    _mix(begin)
    keys = np.arange(length, dtype=np.uint64)
    keys += begin
    _mix(keys)  # no two are equal, so that every way of sorting them gives the same order
    return np.argsort(keys).astype(np.int64, copy=False)


def owners(epoch: Epoch, local_sizes: Sequence[int]) -> Indices:
    """The node that keeps each sample: as many for each of its ranks as for any other rank."""
    period = epoch.number // epoch.reshard_every if epoch.reshard_every else 0
    order = shuffled(epoch.length, epoch.seed, _SHARDS_EPOCH + period)
    nodes = np.repeat(np.arange(len(local_sizes)), local_sizes)
    found = np.empty(epoch.length, np.int64)
    found[order] = nodes[np.arange(epoch.length) % len(nodes)]
    return found


def kept(epoch: Epoch, topology: Topology) -> Indices:
    """What a rank brings to its node, so that the ranks of the node together bring all it keeps."""
    everything = np.arange(epoch.length, dtype=np.int64)
    if epoch.shard != "replicas":
        everything = everything[owners(epoch, topology.local_sizes) == topology.node]
    return everything[topology.local_rank :: topology.local_sizes[topology.node]]


def lists(
    epoch: Epoch,
    local_sizes: Sequence[int],
    parts: Sequence[Part] = (),
    ranks: Sequence[int] | None = None,
) -> list[Indices]:
    """What ranks read, each in its order, after some parts of the epoch; equally many on all.

    Args:
        epoch: The pass.
        local_sizes: Ranks of each node, now.
        parts: What is behind, by whatever ranks there were then.
        ranks: Whose lists are wanted; None: those of all, which have all samples together.
    """
    if epoch.shuffle:
        left = shuffled(epoch.length, epoch.seed, epoch.number)
    else:
        left = np.arange(epoch.length, dtype=np.int64)
    for part in parts:
        done = [one[: part.taken] for one in _divided(epoch, part.local_sizes, left)]
        left = left[~np.isin(left, np.concatenate(done))]
    return _divided(epoch, local_sizes, left, ranks)


def _divided(
    epoch: Epoch,
    local_sizes: Sequence[int],
    left: Indices,
    ranks: Sequence[int] | None = None,
) -> list[Indices]:
    size = sum(local_sizes)
    each = len(left) // size if epoch.drop_last else -(-len(left) // size)
    if epoch.shard == "node":
        pools = zip(_pools(epoch, local_sizes, left, each), local_sizes, strict=True)
        parts = [pool[local::count] for pool, count in pools for local in range(count)]
    else:
        parts = [left[rank::size] for rank in range(size)]
    wanted = parts if ranks is None else [parts[rank] for rank in ranks]
    return [_filled(part if len(part) else left, each) for part in wanted]


def _pools(epoch: Epoch, local_sizes: Sequence[int], left: Indices, each: int) -> list[Indices]:
    """What each node reads: what it keeps, and of others what is too much for these."""
    owner = owners(epoch, local_sizes)[left]
    counts = np.bincount(owner, minlength=len(local_sizes))
    # The order inside each node stays; and the time does not grow with the nodes.
    places = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    rooms = [each * ranks for ranks in local_sizes]
    surplus = np.sort(
        np.concatenate([mine[room:] for mine, room in zip(places, rooms, strict=True)])
    )
    pools = []
    for mine, room in zip(places, rooms, strict=True):
        missing = max(0, room - len(mine))
        pools.append(left[np.sort(np.concatenate([mine[:room], surplus[:missing]]))])
        surplus = surplus[missing:]
    return pools


def _filled(indices: Indices, count: int) -> Indices:
    """``count`` of them, the first ones again if there are too few."""
    return np.resize(indices, count) if len(indices) else np.empty(0, np.int64)


def _put_whole(entry: Epoch | Part, name: str, least: float, end: float) -> None:
    """Let a field be an int, which NumPy's are not, or raise ValueError."""
    value = getattr(entry, name)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < end:
        raise ValueError(f"{name}={value!r} (expected an integer from {least} to below {end})")
    object.__setattr__(entry, name, number)


def _mix(numbers: NDArray[np.uint64]) -> None:
    """Make other numbers of them, no two of which are equal if no two were."""
    numbers += np.uint64(_GAMMA)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)


def encode_state(epoch: Epoch, parts: Sequence[Part]) -> dict[str, Any]:
    """As a dict of numbers, lists and text; `decode_state` reads it."""
    return {
        **dataclasses.asdict(epoch),
        "parts": [[list(part.local_sizes), part.taken] for part in parts],
    }


def decode_state(state: dict[str, Any]) -> tuple[Epoch, list[Part]]:
    """Inverse of `encode_state`.

    Raises:
        ValueError: It is no such state.
    """
    names = {entry.name for entry in dataclasses.fields(Epoch)}
    if set(state) != names | {"parts"}:
        raise ValueError(f"a state with {sorted(state)} (expected {sorted(names | {'parts'})})")
    try:
        parts = [Part(tuple(sizes), taken) for sizes, taken in state["parts"]]
    except TypeError as error:
        raise ValueError(f"a state with parts {state['parts']!r} (expected lists)") from error
    return Epoch(**{name: state[name] for name in names}), parts
