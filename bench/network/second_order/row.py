"""Steps of K-FAC on capped hosts, as published and ours, predicted from a probe and measured."""

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
from aiacc.planning.cost import ALL_REDUCE, OPERATIONS, Affine
from aiacc.planning.models.kronecker import layers_of
from bench.bed.bed import bed_for
from bench.network import cells
from bench.record import Run

#: HOSTS:MBIT:SHRINK; every dimension of ResNet-50 is divided by the last.
CELLS = ("4:1000:2", "2:1000:2", "4:300:4", "2:300:4")
MODEL = "resnet50"
#: As in tables, those of the paper first.
METHODS = (methods.D_KFAC, methods.MPD_KFAC, methods.SPD_KFAC)
PEERS = tuple(one.title for one in METHODS)
_TITLES = {title: title for title in (*PEERS, methods.OURS)}
_VARIABLES = {"AIACC_ENGINE": "tcp", "AIACC_LANES": "4"}
_PROBED_MIB = 16


@dataclass(frozen=True)
class Cell:
    """A network, and a device that is as much slower than the published one as the network is.

    So sending all factors takes the same share of a step.
    """

    hosts: int
    mbit: float
    shrink: int

    @property
    def slower(self) -> float:
        """By how much."""
        nbytes = sum(packed_bytes(dim) for dim in published.model(MODEL).dims)
        wire = cells.wire_s(nbytes // self.shrink**2, self.mbit, self.hosts)
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


def sustained(points: Sequence[Mapping[str, Any]], shrink: int, lanes: int) -> Affine:
    """A + b M of each operation, by the smallest and the largest that were probed.

    Those between begin behind a pause, in which a capped interface saves up for a burst. In a step
    there is no pause, so they would promise more than the wire has.

    Args:
        points: Of a probed network.
        shrink: For bytes of the whole model, of which this part of each dimension is sent.
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
        pairs[operation] = (a, (seconds - a) / most / shrink**2)
    return Affine(*pairs[ALL_REDUCE], pairs)


def measure(name: str, rounds: int | None) -> dict[str, Any]:
    """See Row. What the simulator says is made from a probe before the rounds."""
    hosts, mbit, shrink = (int(part) for part in name.split(":"))
    cell = Cell(hosts, mbit, shrink)
    with bed_for(cells.spec("kfac", mbit, hosts)) as bed:
        network = cells.probed(bed, _VARIABLES, _PROBED_MIB)
        found = _simulated(cell, *(sustained(network["points"], shrink, lanes) for lanes in (1, 2)))
        layers = layers_of(cell.model.parameters)
        measured = cells.measured(
            bed,
            "bench.network.second_order.step:rank",
            _task(cell, layers),
            [_contender(one, cell.model, layers) for one in found],
            rounds,
            _VARIABLES,
        )
    return {
        "title": f"{hosts} hosts, {mbit} Mbit/s, dimensions / {shrink}",
        **measured,
        "slower": cell.slower,
        "network": network,
        "predicted": {one.title: _predicted(one) for one in found},
    }


def _simulated(cell: Cell, fused: Affine, single: Affine) -> list[Found]:
    """How each contender does a step.

    Args:
        cell: Of hosts and device.
        fused: Of operations on buckets.
        single: Of operations of which many are issued at a time.
    """
    costs = Costs(cell.hosts, cell.inversion, fused, single, overlap=1.0)
    model = cell.model
    return [*(methods.run(method, model, costs) for method in METHODS), methods.ours(model, costs)]


def _task(cell: Cell, layers: Sequence[Any]) -> dict[str, Any]:
    """What the ranks are told of all contenders: layers and moments, shrunk."""
    model, shrink = cell.model, cell.shrink
    elements = {one.name: one.elements for one in model.parameters}
    return {
        "layers": [
            [one.name, max(1, one.a_dim // shrink), max(1, one.g_dim // shrink)] for one in layers
        ],
        "gradients": {name: math.ceil(n / shrink**2) for name, n in elements.items()},
        "inversion_names": [name for layer in layers for name in factor_names(layer.name)],
        "inversion_s": [float(cell.inversion.seconds(dim)) for dim in model.dims],
        "factor_s": model.factor_s,
    }


def _contender(one: Found, model: Model, layers: Sequence[Any]) -> dict[str, Any]:
    names = [name for layer in layers for name in factor_names(layer.name)]
    ours = one.title == methods.OURS
    pipelined = ours or next(m for m in METHODS if m.title == one.title).pipelined
    # Without a pipeline factors are built, and sent, when all gradients are there.
    shown = model if pipelined else replace(model, factor_s=1e-9 * model.factor_s)
    tensors = [t for t in shown.trace.tensors if pipelined or not is_factor(t.name)]
    return {
        "name": one.title,
        "pipelined": pipelined,
        "moments": [[t.name, t.ready_s] for t in tensors],
        "passes_s": model.compute_s + model.factor_s * pipelined,
        "buckets": [[bucket.operation, list(bucket.tensors)] for bucket in one.buckets],
        "owners": list(one.owners),
        # The published variants give all factors to everybody, and send inverses at the end.
        "reduces": ours,
        "late": not ours,
        "together": [[names[factor] for factor in sent.factors] for sent in one.step.stage.sent],
    }


def _predicted(one: Found) -> dict[str, float]:
    step = one.step
    exposed_s = step.seconds - step.compute_s - step.stage.compute_s
    return {"step_s": step.seconds, "exposed_s": exposed_s}


def tables(runs: Sequence[Run]) -> str:
    """See Row."""
    return cells.parts(
        {
            "Steps, and ours over the fastest published variant (reimplemented):": cells.steps(
                runs, _TITLES, PEERS, (methods.OURS,)
            ),
            "Steps, measured / simulated, from the probe before the run:": cells.models(
                runs, _TITLES, "step_s"
            ),
            "Communication that is exposed, measured / simulated:": cells.models(
                runs, _TITLES, "exposed_s"
            ),
        }
    )
