"""Which codec a bucket takes: dense unless a prediction is clearly better. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiacc.compression.codecs import BF16, FLOAT32, NONE, Cast, Codec
from aiacc.compression.costs import EXCHANGES, FREE, TWO_LEVEL, Cluster, Speeds, predict
from aiacc.planning.cost import duration
from aiacc.planning.search import TOLERANCE

#: Part of the time of the best dense all-reduce that others have to save: both predictions may be
#: off by TOLERANCE.
MARGIN = 2 * TOLERANCE
#: Elements of a MiB.
MIB = (1 << 20) // FLOAT32


class Option(NamedTuple):
    """One way for a bucket to travel."""

    codec: Codec
    exchange: str
    #: Predicted.
    seconds: float

    def describe(self) -> str:
        """For people."""
        how = "" if isinstance(self.codec, Cast) else f" ({self.exchange})"
        return f"{self.codec}{how} {duration(self.seconds)}"


class Choice(NamedTuple):
    """What `choose` found."""

    chosen: Option
    #: The best of `none` and the casts that were allowed.
    dense: Option
    #: A line for people.
    text: str


def choose(
    elements: int,
    cluster: Cluster,
    speeds: Mapping[str, Speeds],
    allowed: Sequence[Codec] = (BF16,),
    margin: float = MARGIN,
    exchanges: Sequence[str] = EXCHANGES,
) -> Choice:
    """How a bucket of float32 elements travels; as it is on a single host.

    The same arguments give the same choice; measured ones differ between ranks, so let one rank
    choose for all.

    Args:
        elements: Of the bucket.
        cluster: Measured costs.
        speeds: Measured, by the names of all codecs that are allowed but `none`.
        allowed: What may be lost; `none` always takes part.
        margin: Part of the time of the best of `none` and the casts that any other has to save.
        exchanges: Those that the job can do.

    Raises:
        ValueError: A speed is missing, a number of elements is negative, or the margin is no part.
    """
    if not 0 <= margin < 1:
        raise ValueError(f"margin {margin} (expected 0 or more and less than 1)")
    codecs = [NONE, *(codec for codec in allowed if codec != NONE)]
    missing = [codec.name for codec in codecs[1:] if codec.name not in speeds]
    if missing:
        raise ValueError(
            f"no speed of {', '.join(missing)} (expected one of each codec that is allowed: "
            "measure it, or allow less)"
        )
    options = []
    for codec in codecs if cluster.hosts > 1 else [NONE]:
        one_way = isinstance(codec, Cast) or cluster.local == 1
        for exchange in (TWO_LEVEL,) if one_way else exchanges:
            speed = FREE if codec == NONE else speeds[codec.name]
            seconds = predict(codec, elements, cluster, speed, exchange).seconds
            options.append(Option(codec, exchange, seconds))
    dense = min((one for one in options if isinstance(one.codec, Cast)), key=_seconds)
    best = min(
        (one for one in options if not isinstance(one.codec, Cast)), key=_seconds, default=dense
    )
    chosen = best if best.seconds < dense.seconds * (1 - margin) else dense
    rest = [one for one in (dense, best) if one != chosen]
    text = (
        f"{elements / MIB:.3g} MiB on {cluster.hosts} x {cluster.local} ranks: "
        f"{chosen.describe()}, predicted"
    )
    if rest:
        text += f" (next: {rest[0].describe()}; others have to save {margin:.0%} of dense)"
    return Choice(chosen, dense, text)


def _seconds(option: Option) -> float:
    return option.seconds
