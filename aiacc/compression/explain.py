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
    break_even_bandwidth,
    break_even_density,
    predict,
)

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
    size = sum(buckets) * FLOAT32 / (1 << 20)
    yield (
        f"{_number(cluster.hosts, 'host')} with {_number(cluster.local, 'rank')} each, "
        f"{size:.1f} MiB of float32 in {_number(len(buckets), 'bucket')}, nothing hidden; predicted"
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
    yield "ms: one bucket after the other, with codecs that take no time. Then: below how many"
    yield "Gbit/s of a host a codec that reads 1, 10 or 100 GB/s on each rank beats bf16 that takes"
    yield "no time (bf16: beats none); startups do not count."
    yield "powersgd: a bucket as one square matrix, the least that could travel for it."
    yield f"{'codec':22}{'exchange':>10}{'ms':>9}" + "".join(f"{speed:>9}" for speed in GB_PER_S)
    for text in CODECS:
        codec = parse(text)
        one_way = isinstance(codec, Cast | PowerSGD) or cluster.local == 1
        for exchange in (TWO_LEVEL,) if one_way else EXCHANGES:
            ms = _total(codec, cluster, buckets, FREE, exchange).seconds * 1e3
            row = f"{text:22}{'' if one_way else exchange:>10}{ms:>9.3g}"
            if codec != NONE:
                dense = _total(NONE if codec == BF16 else BF16, cluster, buckets)
                for speed in GB_PER_S:
                    speeds = Speeds(speed * 1e9, speed * 1e9)
                    predicted = _total(codec, cluster, buckets, speeds, exchange)
                    bandwidth = break_even_bandwidth(predicted, dense)
                    row += f"{_gbit(bandwidth * cluster.local):>9}"
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


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _gbit(bandwidth: float) -> str:
    """Of bytes a second."""
    if bandwidth == 0:
        return "never"
    gbit = bandwidth * 8e-9
    if math.isinf(gbit):
        return "always"
    return f"{gbit:.3g}" if gbit < 999.5 else f"{gbit:.0f}"
