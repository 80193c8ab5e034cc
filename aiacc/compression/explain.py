"""When which codec pays on a cluster, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aiacc.compression.codecs import (
    BF16,
    FLOAT32,
    MOST_DENSITY,
    NONE,
    PAIR,
    Cast,
    Codec,
    PowerSGD,
    parse,
)
from aiacc.compression.costs import (
    EXCHANGES,
    FREE,
    TWO_LEVEL,
    Cluster,
    Prediction,
    Speeds,
    break_even_bandwidths,
    break_even_density,
    predict,
)
from aiacc.planning.cost import amount, counted

#: Rows of the table.
CODECS = (
    "none",
    "bf16",
    "int8",
    "fp8",
    "int4",
    "mstopk:density=0.01",
    "mstopk:density=0.001",
    "randomk:density=0.01",
    "powersgd:rank=4",
)
#: GB that a codec reads in a second: columns of the table.
GB_PER_S = (1, 10, 100)


def explain(cluster: Cluster, buckets: Sequence[int]) -> Iterator[str]:
    """Lines for a terminal.

    Args:
        cluster: With costs.
        buckets: Their float32 elements.
    """
    ranks = counted(cluster.ranks, "rank")
    if cluster.local > 1:
        ranks += f" on {counted(cluster.hosts, 'host')}"
    elif cluster.hosts > 1:
        ranks += ", as if each were a host"
    yield (
        f"{ranks}; {amount(sum(buckets) * FLOAT32)} of float32 in "
        f"{counted(len(buckets), 'bucket')}, nothing hidden; predicted"
    )
    if cluster.hosts == 1:
        yield "a single host sends nothing to others: no codec pays"
        return
    how = "" if cluster.local == 1 else f" with {TWO_LEVEL}"
    for name, value_bytes in ((NONE.name, FLOAT32), (BF16.name, FLOAT32 // 2)):
        density = break_even_density(cluster.hosts, value_bytes, PAIR)
        most = f" ({MOST_DENSITY} is the most)" if density > MOST_DENSITY else ""
        yield f"sparse codecs send less than {name}{how} below density {density:.3g}{most}"
    yield ""
    bf16 = _total(BF16, cluster, buckets)
    yield "ms: one bucket after the other, with codecs that take no time. Then: below how many"
    yield "Gbit/s of a host (>: above), with startups as here, a codec that reads 1, 10 or 100 GB/s"
    yield f"on each rank beats bf16 that takes no time (bf16: beats none). {_here(bf16, cluster)}"
    yield "powersgd: a bucket as one square matrix, the least that could travel for it."
    yield f"{'codec':22}{'exchange':>10}{'ms':>9}" + "".join(f"{speed:>9}" for speed in GB_PER_S)
    for text in CODECS:
        codec = parse(text)
        one_way = isinstance(codec, Cast | PowerSGD) or cluster.local == 1
        for exchange in (TWO_LEVEL,) if one_way else EXCHANGES:
            ms = _total(codec, cluster, buckets, FREE, exchange).seconds * 1e3
            row = f"{text:22}{'' if one_way else exchange:>10}{ms:>9.3g}"
            if codec != NONE:
                dense = _total(NONE, cluster, buckets) if codec == BF16 else bf16
                for speed in GB_PER_S:
                    speeds = Speeds(speed * 1e9, speed * 1e9)
                    predicted = _total(codec, cluster, buckets, speeds, exchange)
                    between = break_even_bandwidths(predicted, dense)
                    row += f"{_range(*(_gbit(one, cluster) for one in between)):>9}"
            yield row


def _total(
    codec: Codec,
    cluster: Cluster,
    buckets: Sequence[int],
    speeds: Speeds = FREE,
    exchange: str = TWO_LEVEL,
) -> Prediction:
    """Of all buckets, one after the other."""
    parts = [predict(codec, elements, cluster, speeds, exchange) for elements in buckets]
    return Prediction(*(sum(part) for part in zip(*parts, strict=True)))


def _here(dense: Prediction, cluster: Cluster) -> str:
    wire_s = dense.across_s - dense.startup_s
    if wire_s <= 0:
        return "Here bytes cost nothing."
    return f"Here it is {_short(_gbit(dense.across_bytes / wire_s, cluster))}."


def _gbit(bandwidth: float, cluster: Cluster) -> float:
    """Of a host, for bytes a second of a rank."""
    return bandwidth * cluster.local * 8e-9


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f">{_short(low)}" if low else "always"
    return _short(high) if high else "never"


def _short(gbit: float) -> str:
    return f"{gbit:.3g}" if gbit < 999.5 else f"{gbit:.0f}"
