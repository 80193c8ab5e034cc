"""Ways for gradients to travel between capped hosts, all of a model at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from aiacc import _core
from aiacc.compression.codecs import parse
from aiacc.compression.compressor import AUTO
from aiacc.compression.costs import FLAT, FREE, TWO_LEVEL, Cluster, Speeds, predict, speeds_from
from aiacc.compression.wire import wire_of
from aiacc.planning.cost import Analytic
from aiacc.torch.auto_compression import MEASURED, SETTLE
from bench.bed.bed import bed_for
from bench.network import cells
from bench.network.cells import Contender, ddp
from bench.network.workloads import workload
from bench.record import Run, part
from bench.shapes import elements
from bench.tables import ratio

PER_HOST = 2
#: MODEL:MBIT. At 10 Gbit/s the network is as fast as two cores code, and compression should be left
#: alone.
CELLS = ("resnet50:10000", "bert-base:300", "vgg16:300", "bert-base:100")
#: Seconds until a message between hosts is there, and bytes per second inside a host: for the
#: model. Both matter little at these rates.
_ALPHA_S, _INSIDE = 100e-6, 4e9
#: Elements with which coding is timed.
_ELEMENTS = 16 << 20
#: The device takes no time: gradients are there, and a step is their communication.
_NOTHING_S = 1e-9
#: All ranks talk to one another, as if none shared a host.
_FLAT = {"AIACC_ENGINE": "tcp"}


#: Steps until "auto" has compared: six visits.
_COMPARISON = 6 * (SETTLE + MEASURED)
#: What it may choose from: MSTopK, too, which it would not take by itself.
_ALL = f"{AUTO}:bf16+int8+mstopk"
#: DDP forms its buckets after the first step, and torch's PowerSGD draws its matrices in the third.
#: It keeps so much for a gradient that two ranks on each host do not fit into this machine; some of
#: ours have one, too, to stand beside it. It has one bucket: the hook waits for operations in
#: gloo's threads, and with several the ranks end up waiting for different ones.
_BOTH = {"warmup": 2, "per_host": PER_HOST}
_ALONE = {"hook": "powersgd", "limits_mib": [1 << 16], "warmup": 4}


def _ours(title: str, codec: str, **options: Any) -> Contender:
    return Contender(title, compression=codec, **{**_BOTH, **options})


_DENSE = {f"ddp_x{times}": ddp(25, times, ", float32", **_BOTH) for times in (1, 4)}
_HALF = {
    f"fp16_{cap}_x{times}": ddp(cap, times, ", fp16 hook", hook="fp16", **_BOTH)
    for times in (1, 4)
    for cap in (10, 25, 50)
}
_LOW_RANK = {
    f"powersgd_x{times}": ddp(25, times, ", PowerSGD of rank 4, 1 rank per host", **_ALONE)
    for times in (1, 4)
}
CONTENDERS = {
    "dense": _ours("float32", "none"),
    "bf16": _ours("bf16", "bf16"),
    "int8": _ours("int8", "int8"),
    "int4": _ours("int4", "int4"),
    "hitopk": _ours("MSTopK 1 %, HiTopKComm", "mstopk"),
    "flat": _ours("MSTopK 1 %, flat", "mstopk", variables=_FLAT),
    "randomk": _ours("random-k 1 %", "randomk"),
    "low_rank": _ours("PowerSGD of rank 4, ours", "powersgd"),
    AUTO: _ours(f'`compression="{_ALL}"`', _ALL, warmup=_COMPARISON + 2),
    **_DENSE,
    **_HALF,
    "hitopk_1": _ours("MSTopK 1 %, 1 rank per host", "mstopk", per_host=1),
    "low_rank_1": _ours("PowerSGD of rank 4, ours, 1 rank per host", "powersgd", per_host=1),
    **_LOW_RANK,
}
TITLES = {name: one.title for name, one in CONTENDERS.items()}
_AIACC = [name for name, one in CONTENDERS.items() if one.kind == "aiacc"]
#: What is compared as like with like: ours, and peers that send as many bits.
_LIKE = {
    "float32": ("dense", _DENSE),
    "16 bits": ("bf16", _HALF),
    "PowerSGD": ("low_rank_1", _LOW_RANK),
}
OURS = tuple(ours for ours, _ in _LIKE.values())
PEERS = (*_DENSE, *_HALF, *_LOW_RANK)
#: At 100 Mbit/s a step of float32 takes a minute, and "auto" dozens of them; at 10 Gbit/s only what
#: a step of some tenths of a second leaves room for.
_LEFT_OUT = {
    100.0: {AUTO, *_DENSE, *_HALF} - {"fp16_25_x1"},
    10000.0: {"int4", "hitopk", "flat", "randomk", "low_rank", "hitopk_1", "low_rank_1"}
    | {*_LOW_RANK},
}


def measure(name: str, rounds: int | None) -> dict[str, Any]:
    """See Row. What the model says is made from how fast this machine codes before the rounds."""
    model, _, rate = name.partition(":")
    work, mbit = workload(model).lasting(_NOTHING_S), float(rate)
    chosen = [one for one in CONTENDERS if one not in _LEFT_OUT.get(mbit, ())]
    speeds = {one: _speeds(CONTENDERS[one].compression) for one in chosen if _is_coded(one)}
    count = elements(work.shapes)
    predicted = {
        one: {"step_s": _predicted_s(CONTENDERS[one], count, mbit, speeds.get(one, FREE))}
        for one in chosen
        if _is_coded(one) or one in ("dense", "bf16")
    }
    with bed_for(cells.spec("coded", mbit)) as bed:
        contenders = {one: CONTENDERS[one] for one in chosen}
        found = cells.trained(bed, work, contenders, rounds, checked=False)
    return {
        "title": f"{work.title.partition(',')[0]}, {mbit:g} Mbit/s",
        **found,
        "speeds": {one: asdict(speed) for one, speed in speeds.items()},
        "predicted": predicted,
    }


def _is_coded(name: str) -> bool:
    """Whether there is a model of its time, which the speed of a codec decides."""
    coded = CONTENDERS[name].kind == "aiacc" and name != AUTO
    return coded and CONTENDERS[name].compression not in ("none", "bf16", "powersgd")


def _speeds(codec: str) -> Speeds:
    """Of one rank by itself."""
    one = parse(codec)
    return speeds_from(one, _ELEMENTS, _core.coding_seconds(wire_of(one), _ELEMENTS))


def _predicted_s(one: Contender, count: int, mbit: float, speeds: Speeds) -> float:
    """Seconds of the all-reduces of so many elements, by the formula of a ring.

    One rank of each host stands for all of them: they code at the same time and share the
    interface.
    """
    across = Analytic("ring", _ALPHA_S, cells.byte_s(mbit) * one.per_host, 0.0, cells.HOSTS)
    inside = Analytic("ring", 0.0, 1 / _INSIDE, 0.0, one.per_host)
    bed = Cluster(cells.HOSTS, one.per_host, across, inside)
    return predict(
        parse(one.compression), count, bed, speeds, FLAT if one.variables else TWO_LEVEL
    ).seconds


def tables(runs: Sequence[Run]) -> str:
    """See Row."""
    return cells.parts(
        {
            "Steps with two ranks per host, and ours over the fastest DDP:": cells.steps(
                runs, _at(PER_HOST), (*_DENSE, *_HALF), _AIACC
            ),
            "Steps with one rank per host, and ours over torch's PowerSGD:": cells.steps(
                runs, _at(1), tuple(_LOW_RANK), _AIACC
            ),
            "Steps, measured / model, from the rate and the speed of coding before the run:": (
                cells.models(runs, TITLES, "step_s")
            ),
            'What "auto" has found:': "\n".join(line for run in runs for line in _automatic(run)),
        }
    )


def contests(run: Run) -> list[Run]:
    """A run for each of _LIKE."""
    return [
        part(run, title, {key: key for key in (ours, *them)})
        for title, (ours, them) in _LIKE.items()
    ]


def _at(per_host: int) -> dict[str, str]:
    return {name: one.title for name, one in CONTENDERS.items() if one.per_host == per_host}


def _automatic(run: Run) -> list[str]:
    """How "auto" stands beside what loses nothing or little, and what it has said."""
    if AUTO not in run["samples"]:
        return []
    over = max(ratio(run, AUTO, name) for name in ("dense", "bf16"))
    return [
        f"* {run['title']}: {CONTENDERS[AUTO].title} takes {over:.2f}x the faster of float32 and "
        "bf16",
        *(f"  (`{line}`)" for note in run["notes"].get(AUTO, ()) for line in note.get("said", ())),
    ]


def plot(runs: Sequence[Run]) -> Any:
    """See Row."""
    return cells.plot(runs, TITLES, _AIACC)
