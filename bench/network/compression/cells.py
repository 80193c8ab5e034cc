"""What is measured: a model, a rate, ways to travel, and what the model of costs says. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiacc.compression.codecs import parse
from aiacc.compression.compressor import AUTO
from aiacc.compression.costs import FLAT, FREE, TWO_LEVEL, Cluster, Speeds, predict
from aiacc.planning.cost import Analytic
from aiacc.torch.auto_compression import MEASURED, SETTLE
from bench.network.plan import Spec
from bench.network.planning.cells import CONGESTION, PAYLOAD
from bench.network.workloads import workload

HOSTS, PER_HOST = 4, 2
MODELS = ("vgg16", "bert-base")
RATES_MBIT = (1000.0, 300.0, 100.0)
#: Where the network is as fast as this machine codes, and compression should be left alone.
FAST = (("vgg16", 10_000.0), ("resnet50", 10_000.0))
#: Here a step of float32 takes a minute: one counts, of one round.
_SLOWEST_MBIT = 100.0
#: Seconds until a message between hosts is there, and bytes per second inside a host: for
#: predictions. Both matter little at these rates.
_ALPHA_S, _INSIDE = 100e-6, 4e9


@dataclass(frozen=True)
class Contender:
    """One way to travel.

    Attributes:
        name: Key in result files.
        title: As in tables.
        codec: As text; "" for torch's own PowerSGD.
        flat: Whether all ranks talk to one another, as if none shared a host.
        warmup: Steps that do not count: buckets are formed after the first, and torch's PowerSGD
            draws its matrices in the third.
        per_host: Ranks on each host. Torch's PowerSGD keeps so much for a gradient that two of them
            do not fit into this machine; some of ours have as many, to stand beside it.
    """

    name: str
    title: str
    codec: str
    flat: bool = False
    warmup: int = 2
    per_host: int = PER_HOST


#: Steps until "auto" has compared: six visits.
_COMPARISON = 6 * (SETTLE + MEASURED)
#: What it may choose from: MSTopK, too, which it would not take by itself.
_ALL = "bf16+int8+mstopk"
CONTENDERS = (
    Contender("dense", "float32", "none"),
    Contender("bf16", "bf16", "bf16"),
    Contender("int8", "int8", "int8"),
    Contender("int4", "int4", "int4"),
    Contender("hitopk", "MSTopK 1 %, HiTopKComm", "mstopk"),
    Contender("flat", "MSTopK 1 %, flat", "mstopk", flat=True),
    Contender("randomk", "random-k 1 %", "randomk"),
    Contender("low_rank", "PowerSGD of rank 4, ours", "powersgd"),
    Contender(AUTO, f'`compression="{AUTO}:{_ALL}"`', f"{AUTO}:{_ALL}", warmup=_COMPARISON + 2),
    Contender("hitopk_1", "MSTopK 1 %, 1 rank per host", "mstopk", per_host=1),
    Contender("low_rank_1", "PowerSGD of rank 4, ours, 1 rank per host", "powersgd", per_host=1),
    Contender(
        "powersgd", "PowerSGD of rank 4, DDP/gloo, 1 rank per host", "", warmup=4, per_host=1
    ),
)


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    workload: str
    mbit: float
    steps: int = 2
    rounds: int = 2

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.workload}:{self.mbit:g}"

    def contenders(self, number: int) -> list[Contender]:
        """Who takes part in a round; back in every second one, and "auto" once."""
        everybody = [one for one in CONTENDERS if one.name != AUTO or number == 0]
        return everybody if number % 2 == 0 else everybody[::-1]

    @property
    def spec(self) -> Spec:
        """The bed."""
        return Spec(
            name="coded", hosts=HOSTS, flow_mbit=0, nic_mbit=self.mbit, congestion=CONGESTION
        )

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Parameters in the order of the forward pass."""
        return workload(self.workload).shapes


def chosen(text: str) -> list[Cell]:
    """Cells by what a user wrote: all, or names such as vgg16:1000, with commas.

    Raises:
        ValueError: Something else.
    """
    if text == "all":
        slow = [(model, mbit) for mbit in RATES_MBIT for model in MODELS]
        return [_cell(model, mbit) for model, mbit in (*FAST, *slow)]
    cells = []
    for name in text.split(","):
        model, _, mbit = name.partition(":")
        try:
            cells.append(_cell(workload(model).name, float(mbit)))
        except ValueError as error:
            raise ValueError(f"cell {name!r} (expected MODEL:MBIT, as vgg16:1000)") from error
    return cells


def _cell(model: str, mbit: float) -> Cell:
    return Cell(model, mbit) if mbit > _SLOWEST_MBIT else Cell(model, mbit, steps=1, rounds=1)


def cluster(mbit: float, per_host: int = PER_HOST) -> Cluster:
    """The bed by the formula of a ring; ranks of a host share its interface."""
    beta = 8 / (mbit * 1e6 * PAYLOAD) * per_host
    across = Analytic("ring", _ALPHA_S, beta, 0.0, HOSTS)
    return Cluster(HOSTS, per_host, across, Analytic("ring", 0.0, 1 / _INSIDE, 0.0, per_host))


def predicted_s(
    one: Contender, sizes: Sequence[int], mbit: float, speeds: Mapping[str, Speeds]
) -> float | None:
    """Seconds of the all-reduces of gradients of so many elements; None: there is no model.

    One rank of each host stands for all of them: they code at the same time and share the
    interface.
    """
    if one.name == AUTO or one.codec in ("", "powersgd"):  # whose bytes depend on shapes
        return None
    exchange = FLAT if one.flat else TWO_LEVEL
    elements = math.fsum(sizes)
    bed = cluster(mbit, one.per_host)
    found = predict(parse(one.codec), int(elements), bed, speeds.get(one.name, FREE), exchange)
    return found.seconds
