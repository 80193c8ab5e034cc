"""What is measured: a model, a network and a device for each cell. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiacc.planning.trace import Tensor, Trace
from bench.network.plan import Spec
from bench.network.workloads import Workload, workload

HOSTS = 4
#: Share of a packet that is TCP's payload, at an MTU of 1500.
PAYLOAD = 1448 / 1514
#: Congestion control of the hosts: what most systems have, whatever this machine's default.
CONGESTION = "cubic"
#: Seconds of computation over those of the wire with which planning decides most: the backward
#: pass, two thirds of it, takes as long as all gradients on the wire.
BALANCED = 1.5
#: Steps that `plan="auto"` may take until it has chosen.
AUTO_WARMUP = 92
#: What AIACC_UNIT_BYTES is by default: without delay, and with as much as DELAYS_MS has.
UNIT, LARGE_UNIT = "1MiB", "8MiB"
#: Cells whose gradients take longer than that on the wire have few steps; or few contenders, too.
_SLOW_S, _SLOWEST_S = 2.5, 8.0

MODELS = ("resnet50", "densenet201", "bert-base")
RATES_MBIT = (1000.0, 300.0, 100.0)
DELAYS_MS = (0.0, 10.0)


@dataclass(frozen=True)
class Cell:
    """One line of the table.

    Attributes:
        workload: Model.
        mbit: Rate of every host in each direction, Mbit/s.
        delay_ms: Of every packet.
        ratio: Seconds of computation over those that all gradients take at the wire's rate; None:
            the published device as it is.
        rounds: Jobs; each has all contenders, and every second one has them backwards.
        steps: Steps that count, of each contender in each job.
        auto_rounds: Jobs that ``plan="auto"`` takes part in, for it needs many steps.
        few: Whether only some contenders take part.
        unit: AIACC_UNIT_BYTES.
        slow_start_after_idle: As in `Spec`. Off: what a connection carries after a pause differs
            from step to step otherwise, and no model of the network has it.
    """

    workload: str
    mbit: float
    delay_ms: float
    ratio: float | None = 1.0
    rounds: int = 3
    steps: int = 3
    auto_rounds: int = 2
    few: bool = False
    unit: str = UNIT
    slow_start_after_idle: bool = False

    @property
    def name(self) -> str:
        """As on the command line."""
        device = "published" if self.ratio is None else f"{self.ratio:g}"
        unit = "" if self.unit == UNIT else f":{self.unit}"
        return f"{self.workload}:{self.mbit:g}:{self.delay_ms:g}:{device}{unit}"

    @property
    def work(self) -> Workload:
        """The step on the cell's device."""
        work = workload(self.workload)
        if self.ratio is None:
            return work
        return work.lasting(self.ratio * wire_s(work.bytes, self.mbit))

    @property
    def spec(self) -> Spec:
        """The bed."""
        return Spec(
            name="planning",
            hosts=HOSTS,
            flow_mbit=0,
            nic_mbit=self.mbit,
            delay_ms=self.delay_ms,
            congestion=CONGESTION,
            slow_start_after_idle=self.slow_start_after_idle,
        )

    def estimate_s(self, contenders: int) -> float:
        """About how long the cell takes, with so many contenders besides ``plan="auto"``."""
        work = self.work
        wire = wire_s(work.bytes, self.mbit)
        step_s = 1.1 * (work.forward_s + max(max(work.backward_s), wire))
        count = self.rounds * contenders * (self.steps + 4)
        count += self.auto_rounds * (AUTO_WARMUP + self.steps + 1)
        return (
            count * step_s
            + max(self.rounds, self.auto_rounds) * (8 + contenders)
            + 60
            + 9 * self.delay_ms
        )


def unit_bytes(cell: Cell) -> int:
    """AIACC_UNIT_BYTES of the cell."""
    return int(cell.unit.removesuffix("MiB")) << 20


def wire_s(nbytes: int, mbit: float, hosts: int = HOSTS) -> float:
    """Seconds of a ring all-reduce that does nothing but fill the interfaces."""
    return 2 * (hosts - 1) / hosts * 8 * nbytes / (mbit * 1e6 * PAYLOAD)


def probe_mib(mbit: float) -> int:
    """Largest size that is probed: about half a second of the wire, from 4 to 32 MiB."""
    most = 0.5 * mbit * 1e6 * PAYLOAD / 8 / (2 * (HOSTS - 1) / HOSTS) / (1 << 20)
    return int(min(32, max(4, 2 ** math.floor(math.log2(most)))))


def paced(cell: Cell) -> Cell:
    """The cell with as many steps and contenders as its bytes allow."""
    seconds = wire_s(workload(cell.workload).bytes, cell.mbit)
    if seconds < _SLOW_S:
        return cell
    return replace(cell, rounds=2, steps=1, auto_rounds=0, few=cell.few or seconds > _SLOWEST_S)


def every() -> list[Cell]:
    """All cells, those with the fastest network first, and the published device at that rate."""
    cells = [
        Cell(model, mbit, delay_ms)
        for mbit, model, delay_ms in itertools.product(RATES_MBIT, MODELS, DELAYS_MS)
    ]
    return [*cells, *(Cell(model, RATES_MBIT[0], 0.0, None) for model in MODELS)]


def default() -> list[Cell]:
    """About an hour, with what tells most about planning first.

    Left out are cells whose steps take 15 s and more (BERT-base at 100 and 300 Mbit/s, ResNet-50 at
    100 Mbit/s), and of the slower networks what a cell that is here differs from by little.
    """
    return [
        Cell("resnet50", 1000, 0, BALANCED),
        Cell("resnet50", 1000, 10, BALANCED, unit=LARGE_UNIT),
        Cell("resnet50", 1000, 10, BALANCED, rounds=2, auto_rounds=0),
        Cell("densenet201", 1000, 10, BALANCED, auto_rounds=1, unit=LARGE_UNIT),
        Cell("densenet201", 1000, 0, BALANCED, auto_rounds=1),
        Cell("densenet201", 1000, 0, auto_rounds=1),
        Cell("bert-base", 1000, 0, few=True),
        Cell("resnet50", 1000, 0, None, rounds=2, auto_rounds=0),
        Cell("resnet50", 300, 10, few=True, unit=LARGE_UNIT),
        Cell("densenet201", 100, 10, unit=LARGE_UNIT),
    ]


def chosen(text: str, ratio: float | None = None) -> list[Cell]:
    """Cells by what a user wrote: default, all, or names such as resnet50:1000:0:1, with commas.

    ``ratio`` takes the place of those of the cells, except for the published device.

    Raises:
        ValueError: Something else.
    """
    cells = {"default": default, "all": every}.get(text, lambda: named(text))()
    if ratio is not None:
        cells = [cell if cell.ratio is None else replace(cell, ratio=ratio) for cell in cells]
    return [paced(cell) for cell in dict.fromkeys(cells)]


def named(text: str) -> list[Cell]:
    """Cells by their names, with commas. Raises ValueError."""
    return [_parsed(name) for name in text.split(",")]


def _parsed(name: str) -> Cell:
    parts = name.split(":")
    try:
        model, mbit, delay_ms, device, unit = [*parts, UNIT][:5]
        work = workload(model)
        ratio = None if device == "published" else float(device)
        cell = Cell(work.name, float(mbit), float(delay_ms), ratio, unit=unit)
        if len(parts) > 5 or not (
            cell.mbit > 0 and cell.delay_ms >= 0 and (ratio is None or ratio > 0)
        ):
            raise ValueError(name)
    except ValueError as error:
        raise ValueError(
            f"cell {name!r} (expected MODEL:MBIT:DELAY_MS:RATIO, as resnet50:1000:10:1, with "
            "published in the place of a ratio for the published device, and :8MiB behind it for "
            "another AIACC_UNIT_BYTES)"
        ) from error
    return cell


def trace_of(work: Workload) -> Trace:
    """The step as planners take it: what the modelled device does, exactly."""
    needs = [0.0, *itertools.accumulate(work.layers_s)]
    rows: Sequence[tuple[str, int, float, float]] = [
        (name, 4 * math.prod(shape), work.forward_s + after_s, min(need_s, work.forward_s))
        for (name, shape), after_s, need_s in zip(
            work.shapes, work.backward_s, needs[:-1], strict=True
        )
    ]
    return Trace(
        model=work.title,
        tensors=tuple(
            Tensor(name, nbytes, "float32", ready_s, need_s)
            for name, nbytes, ready_s, need_s in reversed(rows)
        ),
        forward_s=work.forward_s,
        backward_s=max(work.backward_s),
        source="modelled",
    )
