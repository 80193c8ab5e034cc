"""What is measured: hosts and a network for each cell, and the same network of layers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiacc.kfac import methods, published
from aiacc.kfac.costs import packed_bytes
from aiacc.kfac.methods import Found, Model
from aiacc.kfac.modelled import factor_names, is_factor
from aiacc.kfac.step import Costs
from aiacc.planning.cost import ALL_REDUCE, OPERATIONS, Affine, CostModel
from aiacc.planning.models.kronecker import layers_of
from bench.network.plan import Spec
from bench.network.planning.cells import CONGESTION, wire_s

MODEL = "resnet50"
#: As in tables, those of the paper first.
METHODS = (methods.D_KFAC, methods.MPD_KFAC, methods.SPD_KFAC)
TITLES = (*(one.title for one in METHODS), methods.OURS)


@dataclass(frozen=True)
class Cell:
    """One line of the table.

    Attributes:
        hosts: With one rank each.
        mbit: Rate of every host in each direction, Mbit/s.
        shrink: By which every dimension of ResNet-50 is divided.
        rounds: Jobs; each has all contenders, and every second one has them backwards.
        steps: Steps that count, of each contender in each job.
    """

    hosts: int
    mbit: float
    shrink: int
    rounds: int = 3
    steps: int = 3

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.hosts}:{self.mbit:g}:{self.shrink}"

    @property
    def spec(self) -> Spec:
        """The bed."""
        return Spec(
            name="kfac", hosts=self.hosts, flow_mbit=0, nic_mbit=self.mbit, congestion=CONGESTION
        )

    @property
    def slower(self) -> float:
        """By how much the modelled device is slower than the published one.

        As much as the network: sending all factors takes the same share of a step.
        """
        nbytes = sum(packed_bytes(dim) for dim in published.model(MODEL).dims)
        wire = wire_s(nbytes // self.shrink**2, self.mbit, self.hosts)
        return wire / published.MEASURED[MODEL].bulk_s

    @property
    def model(self) -> Model:
        """What the device takes, with the dimensions of ResNet-50 as they are."""
        model = published.model(MODEL)
        slower = self.slower
        return replace(model, compute_s=model.compute_s * slower, factor_s=model.factor_s * slower)

    @property
    def inversion(self) -> Any:
        """Seconds on the device, by the dimension of ResNet-50."""
        cost = published.inversion()
        return replace(
            cost, c0=cost.c0 * self.slower, c2=cost.c2 * self.slower, c3=cost.c3 * self.slower
        )

    def estimate_s(self) -> float:
        """About how long the cell takes."""
        step_s = 1.3 * self.slower * published.MEASURED[MODEL].totals_s[0]
        return self.rounds * (len(TITLES) * (self.steps + 1) * step_s + 15) + 60


@dataclass(frozen=True)
class Shrunk:
    """A network through which the bytes of a smaller model go, for the plan of the whole one."""

    cost: CostModel
    shrink: int

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        return self.cost.time(operation, nbytes / self.shrink**2, lanes)


def sustained(points: Sequence[Mapping[str, Any]], lanes: int = 1) -> Affine:
    """A + b M of each operation, by the smallest and the largest that were probed.

    Those between begin behind a pause, in which a capped interface saves up for a burst. In a step
    there is no pause, so they would promise more than the wire has.

    Args:
        points: Of `aiacc-plan probe`.
        lanes: So many operations at a time; the costs are of one, by what it adds to the others.
    """
    pairs = {}
    for operation in OPERATIONS:
        row = sorted(
            (float(one["bytes"]), float(one["seconds"]) / lanes)
            for one in points
            if one["operation"] == operation and one["lanes"] == lanes
        )
        (_, a), (most, seconds) = row[0], row[-1]
        pairs[operation] = (a, (seconds - a) / most)
    return Affine(*pairs[ALL_REDUCE], pairs)


def default() -> list[Cell]:
    """Two and four hosts, 1 Gbit/s and 300 Mbit/s, with steps of some seconds."""
    return [Cell(hosts, mbit, shrink) for mbit, shrink in ((1000, 2), (300, 4)) for hosts in (4, 2)]


def chosen(text: str) -> list[Cell]:
    """Cells by what a user wrote: default, or HOSTS:MBIT:SHRINK with commas. Raises ValueError."""
    if text == "default":
        return default()
    cells = []
    for name in text.split(","):
        try:
            hosts, mbit, shrink = name.split(":")
            cell = Cell(int(hosts), float(mbit), int(shrink))
        except ValueError as error:
            raise ValueError(f"cell {name!r} (expected HOSTS:MBIT:SHRINK, as 4:1000:2)") from error
        if cell.hosts < 2 or cell.mbit <= 0 or cell.shrink < 1:
            raise ValueError(f"cell {name!r} (expected two hosts or more, a rate, and a divisor)")
        cells.append(cell)
    return cells


def found(cell: Cell, fused: CostModel, single: CostModel) -> list[Found]:
    """How each contender does a step, by the simulator with costs that were measured.

    Args:
        cell: Of hosts and device.
        fused: Of operations on buckets.
        single: Of operations of which many are issued at a time.
    """
    networks = [Shrunk(cost, cell.shrink) for cost in (fused, single)]
    costs = Costs(cell.hosts, cell.inversion, *networks, overlap=1.0)
    model = cell.model
    return [*(methods.run(method, model, costs) for method in METHODS), methods.ours(model, costs)]


def job(cell: Cell, contenders: Sequence[Found], output: str) -> dict[str, Any]:
    """What the ranks are told, as JSON: layers, moments and contenders, all shrunk."""
    model, shrink = cell.model, cell.shrink
    layers = layers_of(model.parameters)
    elements = {one.name: one.elements for one in model.parameters}
    sgd = replace(model, factor_s=1e-9 * model.factor_s)
    return {
        "layers": [
            [one.name, max(1, one.a_dim // shrink), max(1, one.g_dim // shrink)] for one in layers
        ],
        "gradients": {name: math.ceil(n / shrink**2) for name, n in elements.items()},
        "inversion_names": [name for layer in layers for name in factor_names(layer.name)],
        "inversion_s": [float(cell.inversion.seconds(dim)) for dim in model.dims],
        "moments": [[t.name, t.ready_s] for t in model.trace.tensors],
        "moments_of_gradients": [
            [t.name, t.ready_s] for t in sgd.trace.tensors if not is_factor(t.name)
        ],
        "compute_s": model.compute_s,
        "factor_s": model.factor_s,
        "steps": cell.steps,
        "contenders": [_contender(one, layers) for one in contenders],
        "output": output,
    }


def _contender(one: Found, layers: Sequence[Any]) -> dict[str, Any]:
    names = [name for layer in layers for name in factor_names(layer.name)]
    ours = one.title == methods.OURS
    pipelined = ours or next(m for m in METHODS if m.title == one.title).pipelined
    return {
        "name": one.title,
        "pipelined": pipelined,
        "buckets": [[bucket.operation, list(bucket.tensors)] for bucket in one.buckets],
        "owners": list(one.owners),
        # The published variants give all factors to everybody, and send inverses at the end.
        "reduces": ours,
        "late": not ours,
        "together": [[names[factor] for factor in sent.factors] for sent in one.step.stage.sent],
    }


def prediction(one: Found) -> dict[str, Any]:
    """What a result file has of a simulated step."""
    return {
        "seconds": one.step.seconds,
        "compute_s": one.step.compute_s,
        "passes_s": one.step.compute_s + one.step.exposed_s,
        "inversion_s": one.step.stage.compute_s,
        "exposed_s": one.step.seconds - one.step.compute_s - one.step.stage.compute_s,
        "buckets": len(one.buckets),
        "owned": sum(owner is not None for owner in one.owners),
    }
