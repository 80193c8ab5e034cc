"""Which codec each bucket of a job takes, and what all of them cost together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiacc.compression.choose import MARGIN, MIB, Option, choose
from aiacc.compression.codecs import BF16, NONE, Cast, Codec
from aiacc.compression.costs import EXCHANGES, FREE, Cluster, Speeds, predict
from aiacc.planning.cost import duration


class Choices(NamedTuple):
    """What `choose_each` found."""

    #: By bucket.
    chosen: tuple[Option, ...]
    #: A line for people: what for how many buckets, and what was predicted.
    text: str

    @property
    def seconds(self) -> float:
        """Predicted, one bucket after the other."""
        return sum(option.seconds for option in self.chosen)


def choose_each(
    buckets: Sequence[int],
    cluster: Cluster,
    speeds: Mapping[str, Speeds],
    allowed: Sequence[Codec] = (BF16,),
    margin: float = MARGIN,
    exchanges: Sequence[str] = EXCHANGES,
) -> Choices:
    """`choose` for each of several buckets.

    Where startups are much of a bucket's time, a shorter code saves less of it than the margin: so
    small buckets may stay dense beside large ones that do not.

    Args:
        buckets: Their float32 elements.
        cluster: As of `choose`, as are the others.
        speeds: See there.
        allowed: See there.
        margin: See there.
        exchanges: See there.

    Raises:
        ValueError: As `choose` does.
    """
    chosen = tuple(
        choose(elements, cluster, speeds, allowed, margin, exchanges).chosen for elements in buckets
    )
    sizes: dict[tuple[Codec, str], list[int]] = {}
    for option, elements in zip(chosen, buckets, strict=True):
        sizes.setdefault((option.codec, option.exchange), []).append(elements)
    parts = [
        f"{codec}{'' if isinstance(codec, Cast) or cluster.local == 1 else f' ({exchange})'} for "
        f"{len(those)} bucket{'s' if len(those) > 1 else ''} of {_mib(sum(those))}"
        for (codec, exchange), those in sorted(sizes.items(), key=lambda item: -sum(item[1]))
    ]
    dense = [NONE, *(codec for codec in allowed if isinstance(codec, Cast) and codec != NONE)]
    instead = ", ".join(
        f"{codec} {duration(sum(_seconds(codec, each, cluster, speeds) for each in buckets))}"
        for codec in dense
    )
    total = duration(sum(option.seconds for option in chosen))
    return Choices(
        chosen,
        f"{', '.join(parts) or 'no bucket'} on {cluster.hosts} x {cluster.local} ranks, "
        f"predicted {total} (all alike: {instead})",
    )


def levels(hosts: Sequence[int]) -> tuple[int, int]:
    """On how many hosts ranks are, and how many of each take part across: those of the smallest.

    Args:
        hosts: The host of each rank, any number that is equal for ranks of one host.
    """
    ranks = Counter(hosts).values()
    return len(ranks), min(ranks)


def _seconds(codec: Codec, elements: int, cluster: Cluster, speeds: Mapping[str, Speeds]) -> float:
    return predict(codec, elements, cluster, FREE if codec == NONE else speeds[codec.name]).seconds


def _mib(elements: int) -> str:
    return f"{elements / MIB:.3g} MiB"
