"""How long a compressed all-reduce takes, as predicted from measured costs. Pure.

With `none`, `fp16` and `bf16` numbers are summed inside hosts in float32, then across hosts in that
format. The others know two exchanges:

* FLAT, all ranks with one another. Quantised: shards to their owners, which sum them in float32,
  and a gather of the encoded sums. Sparse: a gather of all pairs, which every rank adds up; beyond
  the break-even density to float32 an all-reduce of what they stand for.
  `randomk`: an all-reduce of what is sent. (`powersgd` has two all-reduces of all ranks.)
* TWO_LEVEL: a reduce-scatter in float32 inside hosts, FLAT among the ranks of the same shard, one
  of each host, and a gather in float32 inside hosts. With sparse codecs this is HiTopKComm (Shi et
  al., MLSys 2021, arXiv 2010.10458).

Parts of an operation follow one another here. Lanes and streams let them overlap, so what is
predicted for codecs is rather too long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiacc.compression.codecs import FLOAT32, NONE, Cast, Codec, PowerSGD, RandomK, Sparse
from aiacc.planning.cost import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    CostModel,
    Hierarchical,
)

FLAT, TWO_LEVEL = "flat", "two_level"
EXCHANGES = (FLAT, TWO_LEVEL)


@dataclass(frozen=True)
class Speeds:
    """Bytes that a codec reads in a second, on one rank, as measured.

    Encoding, with a sparse codec the selection, reads float32; decoding, with a sparse codec adding
    pairs to an array, reads what has come.
    """

    encode: float
    decode: float

    def __post_init__(self) -> None:
        if not (self.encode > 0 and self.decode > 0):
            raise ValueError(
                f"speeds of {self.encode} and {self.decode} bytes/s (expected more than 0, as a "
                "measurement gives)"
            )


#: Of a codec that costs nothing.
FREE = Speeds(math.inf, math.inf)


def speeds_from(codec: Codec, elements: int, seconds: float) -> Speeds:
    """For an all-reduce of so many elements that one rank does by itself in so many seconds.

    Half of them count for each way. Sums of blocks are coded, too.
    """
    passes = 1 if isinstance(codec, Sparse) else 2
    encoded, decoded = FLOAT32 * elements, codec.wire_bytes(elements)
    return Speeds(2 * passes * encoded / seconds, 2 * passes * decoded / seconds)


@dataclass(frozen=True)
class Cluster:
    """Hosts with the same number of ranks each.

    Costs are as `aiacc.planning.cost.Hierarchical` has them: ``across`` of an operation between
    hosts by the bytes of one rank's share, while every rank of a host is busy with its own.
    """

    hosts: int
    #: Ranks of a host.
    local: int
    across: CostModel
    #: None with one rank on each host.
    inside: CostModel | None = None

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.local < 1:
            raise ValueError(f"{self.hosts} hosts with {self.local} ranks (expected 1 or more)")
        if self.local > 1 and self.inside is None:
            raise ValueError(
                f"no costs inside hosts of {self.local} ranks (expected a cost model, as of "
                "`aiacc-plan probe` on one host)"
            )

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.local

    def near_s(self, operation: str, nbytes: float) -> float:
        """Seconds of an operation inside hosts."""
        if self.local == 1 or self.inside is None:
            return 0.0
        return float(self.inside.time(operation, nbytes))

    def far_s(self, operation: str, nbytes: float) -> float:
        """Seconds of an operation across hosts."""
        return 0.0 if self.hosts == 1 else float(self.across.time(operation, nbytes))


def cluster_of(cost: CostModel, ranks: int) -> Cluster:
    """The cluster that has such costs among so many ranks; without levels, each rank is a host.

    Raises ValueError if the ranks do not fill the hosts.
    """
    if not isinstance(cost, Hierarchical):
        return Cluster(ranks, 1, cost)
    if ranks <= cost.local:
        return Cluster(1, ranks, cost.between, cost.inside)
    if ranks % cost.local:
        raise ValueError(
            f"{ranks} ranks on hosts of {cost.local} (expected a multiple of {cost.local})"
        )
    return Cluster(ranks // cost.local, cost.local, cost.between, cost.inside)


class Prediction(NamedTuple):
    """An operation in parts, on the slowest rank."""

    inside_s: float
    across_s: float
    #: Of the codec.
    coding_s: float
    #: That a rank sends to other hosts, with the algorithm of a ring.
    across_bytes: float
    #: Of ``across_s``: what it takes without any bytes.
    startup_s: float

    @property
    def seconds(self) -> float:
        """In total."""
        return self.inside_s + self.across_s + self.coding_s


def predict(
    codec: Codec,
    elements: int,
    cluster: Cluster,
    speeds: Speeds = FREE,
    exchange: str = TWO_LEVEL,
) -> Prediction:
    """An all-reduce of so many float32 elements; see the text of this module.

    Raises ValueError for another exchange, and for a negative number of elements.
    """
    if elements < 0:
        raise ValueError(f"{elements} elements (expected 0 or more)")
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange {exchange!r} (expected one of {', '.join(EXCHANGES)})")
    if isinstance(codec, PowerSGD):
        return _of_products(codec, elements, cluster, speeds)
    if exchange == FLAT and cluster.local > 1 and not isinstance(codec, Cast):
        return _flat(codec, elements, cluster, speeds)
    shard = math.ceil(elements / cluster.local)
    whole, wire = FLOAT32 * elements, codec.wire_bytes(shard)
    inside = cluster.near_s(REDUCE_SCATTER, whole) + cluster.near_s(ALL_GATHER, whole)
    hosts = cluster.hosts
    if isinstance(codec, RandomK):
        across = [(ALL_REDUCE, wire)]
        coding = _coding_s(speeds, FLOAT32 * shard, wire)
    elif isinstance(codec, Sparse) and _sums_pairs(hosts, wire, shard):
        across = [(ALL_REDUCE, FLOAT32 * shard)]
        coding = _coding_s(speeds, FLOAT32 * shard, wire)
    elif isinstance(codec, Sparse):
        across = [(ALL_GATHER, hosts * wire)]
        coding = _coding_s(speeds, FLOAT32 * shard, hosts * wire)
    elif isinstance(codec, Cast):
        across = [(ALL_REDUCE, wire)]
        coding = _coding_s(speeds, FLOAT32 * shard, wire) if codec != NONE else 0.0
    else:
        across = [(REDUCE_SCATTER, wire), (ALL_GATHER, wire)]
        # Each rank encodes its numbers and its sums, and decodes those of all ranks and all sums.
        coding = _coding_s(speeds, FLOAT32 * shard * (1 + 1 / hosts), 2 * wire)
    return _prediction(cluster, inside, across, coding)


def _of_products(codec: PowerSGD, elements: int, cluster: Cluster, speeds: Speeds) -> Prediction:
    """Both factors as half of what travels."""
    half = codec.wire_bytes(elements) / 2
    inside = cluster.near_s(REDUCE_SCATTER, half) + cluster.near_s(ALL_GATHER, half)
    coding = _coding_s(speeds, FLOAT32 * elements, 2 * half)
    return _prediction(cluster, 2 * inside, [(ALL_REDUCE, half / cluster.local)] * 2, coding)


def _flat(codec: Codec, elements: int, cluster: Cluster, speeds: Speeds) -> Prediction:
    """With several ranks on each host."""
    wire, ranks = codec.wire_bytes(elements), cluster.ranks
    if isinstance(codec, RandomK):
        inside = cluster.near_s(REDUCE_SCATTER, wire) + cluster.near_s(ALL_GATHER, wire)
        coding = _coding_s(speeds, FLOAT32 * elements, wire)
        return _prediction(cluster, inside, [(ALL_REDUCE, wire / cluster.local)], coding)
    if isinstance(codec, Sparse) and _sums_pairs(ranks, wire, elements):
        whole = FLOAT32 * elements
        inside = cluster.near_s(REDUCE_SCATTER, whole) + cluster.near_s(ALL_GATHER, whole)
        coding = _coding_s(speeds, whole, wire)
        return _prediction(cluster, inside, [(ALL_REDUCE, whole / cluster.local)], coding)
    if isinstance(codec, Sparse):
        # The pairs of all hosts come in through the ranks of a host in equal parts.
        inside = cluster.near_s(ALL_GATHER, ranks * wire)
        coding = _coding_s(speeds, FLOAT32 * elements, ranks * wire)
        return _prediction(cluster, inside, [(ALL_GATHER, cluster.hosts * wire)], coding)
    # Every rank's numbers leave the host by themselves: nothing has summed them before.
    inside = cluster.near_s(REDUCE_SCATTER, wire / cluster.hosts) + cluster.near_s(ALL_GATHER, wire)
    across = [(REDUCE_SCATTER, wire), (ALL_GATHER, wire / cluster.local)]
    coding = _coding_s(speeds, FLOAT32 * elements * (1 + 1 / ranks), 2 * wire)
    return _prediction(cluster, inside, across, coding)


def _sums_pairs(ranks: int, wire: int, elements: int) -> bool:
    """Whether the pairs of all are longer than what a dense all-reduce sends; that is done then."""
    return ranks * wire > 2 * FLOAT32 * elements


def break_even_density(
    hosts: int, value_bytes: int = FLOAT32, pair_bytes: int | None = None
) -> float:
    """Density at which TWO_LEVEL sends as much across hosts as a dense all-reduce.

    It is 2 s / (m (s + 4)) on m hosts with values of s bytes: what grows is m - 1 gathers, where a
    dense all-reduce sends everything twice at most. Startups and the codec's time come on top.

    Args:
        hosts: 2 or more; a single one sends nothing.
        value_bytes: Of an element of the dense all-reduce: 4, or 2 with 16 bits.
        pair_bytes: Of a value with its index; ``value_bytes`` + 4 if it is left out.
    """
    if hosts < 2:
        raise ValueError(f"hosts {hosts} (expected 2 or more: a single one sends nothing)")
    return 2 * value_bytes / (hosts * (pair_bytes or value_bytes + 4))


def break_even_bandwidths(predicted: Prediction, dense: Prediction) -> tuple[float, float]:
    """Between which bytes a second of one rank across hosts a codec beats a dense all-reduce.

    Startups stay what they are. Below a bandwidth it is the lower one that is 0; above, the upper
    one that is infinite; if none is left, both are 0.
    """
    dense_s = dense.across_s - dense.startup_s
    saved_s = dense_s - (predicted.across_s - predicted.startup_s)
    costs_s = predicted.seconds - dense.seconds + saved_s
    if saved_s >= 0 and costs_s <= 0:
        return (0.0, math.inf) if saved_s > 0 or costs_s < 0 else (0.0, 0.0)
    if saved_s * costs_s <= 0 or dense_s <= 0:
        return 0.0, 0.0
    even = dense.across_bytes / dense_s * saved_s / costs_s
    return (0.0, even) if saved_s > 0 else (even, math.inf)


def _coding_s(speeds: Speeds, encoded: float, decoded: float) -> float:
    return encoded / speeds.encode + decoded / speeds.decode


def _prediction(
    cluster: Cluster, inside: float, across: Sequence[tuple[str, float]], coding: float
) -> Prediction:
    seconds = sum(cluster.far_s(operation, nbytes) for operation, nbytes in across)
    startups = sum(cluster.far_s(operation, 0) for operation, _ in across)
    part = (cluster.hosts - 1) / cluster.hosts
    sent = sum(part * nbytes * (2 if name == ALL_REDUCE else 1) for name, nbytes in across)
    return Prediction(inside, seconds, coding, sent, startups)
