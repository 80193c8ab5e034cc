"""What the authors of SPD-KFAC measured, and a cluster that behaves like theirs. Pure.

Shi, Zhang, Li, ICDCS 2021 (arXiv 2107.06533): 64 GPUs (RTX 2080 Ti), 4 in a host, 100 Gbit/s
InfiniBand; the figures are those behind the bars of the paper, in seconds.

Taken as they are: both passes, the step of synchronous SGD, and the building of factors. Predicted:
how long factors and inverses travel, how long inversions take by placement, and so every total.
Two quantities are calibrated, each by figures that are no totals:

* `inversion` is c0 + c2 d^2 + c3 d^3 with the coefficients that fit the four times in which one GPU
  inverts all factors of a model. Placements were not fitted.
* `OVERLAP` fits the four exposed times of factors that leave in buckets of 64 MiB while the passes
  go on. Those of other schedules were not fitted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

from aiacc.kfac.costs import Polynomial, fit
from aiacc.kfac.methods import PIPELINE_ALONE, Model, exposed_factors_s, sgd_s
from aiacc.kfac.step import HOROVOD, Costs
from aiacc.planning.cost import BROADCAST, Affine
from aiacc.planning.models import MODELS
from aiacc.planning.models.kronecker import Layer, layers_of

RANKS = 64
_WIDTH = 4
#: Both pairs are in the authors' release, per element: operations through a fusion buffer (in the
#: figure of the paper), and single tensors that are issued one after the other (in use).
FUSED = Affine(1.22e-2, 1.45e-9 / _WIDTH)
#: A broadcast moves half the bytes of an all-reduce, but has to start as well.
_SINGLE = (9.29e-4, 1.4335e-9 / _WIDTH)
SINGLE = Affine(*_SINGLE, {BROADCAST: (_SINGLE[0], _SINGLE[1] / 2)})
#: Calibrated: share of the computation that hides communication there. Both go through the same
#: GPUs and the same PCIe; not even SGD's gradients are hidden.
OVERLAP = 0.32


@dataclass(frozen=True)
class Measured:
    """One model, in seconds."""

    compute_s: float
    sgd_s: float
    factor_s: float
    #: Of all factors on one GPU.
    inversion_s: float
    #: Exposed while factors travel: all at once behind the passes; each by itself, in buckets of
    #: 64 MiB, and by the paper's rule during the passes.
    bulk_s: float
    per_tensor_s: float
    threshold_s: float
    rule_s: float
    #: Computation and communication of the inverses: owners in turn, and the paper's placement.
    in_turn_s: tuple[float, float]
    placed_s: tuple[float, float]
    #: Steps of D-KFAC, of MPD-KFAC and of SPD-KFAC.
    totals_s: tuple[float, float, float]
    #: Of D-KFAC with the pipeline alone, and with the placement alone.
    pipeline_alone_s: float
    placement_alone_s: float


MEASURED = {
    "resnet50": Measured(
        0.132, 0.1968, 0.2115, 0.2742, 0.1699, 0.2059, 0.1286, 0.0981,
        (0.0512, 0.1340), (0.1049, 0.0642), (0.8525, 0.7635, 0.6755), 0.7806, 0.7474,
    ),
    "resnet152": Measured(
        0.114, 0.2730, 0.1927, 0.6759, 0.4358, 0.5231, 0.3444, 0.2760,
        (0.0539, 0.4378), (0.2814, 0.1457), (1.5807, 1.3933, 1.1689), 1.4176, 1.3319,
    ),
    "densenet201": Measured(
        0.178, 0.3643, 0.3163, 0.4818, 0.3502, 0.4551, 0.2678, 0.2437,
        (0.0352, 0.4680), (0.4023, 0.0350), (1.4964, 1.5340, 1.3615), 1.4061, 1.4519,
    ),
    "inception_v4": Measured(
        0.134, 0.2669, 0.1979, 0.4306, 0.2903, 0.4704, 0.2136, 0.1988,
        (0.0487, 0.3439), (0.2539, 0.0733), (1.1857, 1.1473, 0.9907), 1.0941, 1.0823,
    ),
}  # fmt: skip


def layers(model: str) -> list[Layer]:
    """Of a published model. Raises ValueError for another."""
    check(model)
    return layers_of(MODELS[model].parameters())


def check(model: str) -> str:
    """``model`` itself; ValueError unless it was measured."""
    if model not in MEASURED:
        raise ValueError(
            f"model {model!r} (expected one of {', '.join(MEASURED)}, for which passes, factors "
            "and inversions were published)"
        )
    return model


@lru_cache
def inversion() -> Polynomial:
    """Calibrated: what an inversion takes there."""
    samples = []
    for model, measured in MEASURED.items():
        dims = [dim for layer in layers(model) for dim in (layer.a_dim, layer.g_dim)]
        samples.append((dims, measured.inversion_s))
    return fit(samples)


def costs(overlap: float = OVERLAP) -> Costs:
    """Of the authors' cluster."""
    return Costs(RANKS, inversion(), FUSED, SINGLE, overlap)


def model(name: str) -> Model:
    """What one of its GPUs takes. Raises ValueError for a model that was not measured."""
    measured = MEASURED[check(name)]
    found = MODELS[name]
    return Model(found.title, found.parameters(), measured.compute_s, measured.factor_s)


def unexplained_s(name: str, overlap: float = OVERLAP) -> float:
    """By how much the published step of synchronous SGD is longer than the simulated one.

    Every method has that on top: the many small gradients of DenseNet-201, for example, have to be
    agreed on one by one.
    """
    return MEASURED[check(name)].sgd_s - sgd_s(model(name), costs(overlap))


def overlap_error(overlap: float) -> float:
    """What `OVERLAP` makes least: squares of the relative errors of `threshold_s`, summed up."""
    method = dataclasses.replace(PIPELINE_ALONE, fusion=HOROVOD)
    total = 0.0
    for name, measured in MEASURED.items():
        exposed_s = exposed_factors_s(method, model(name), costs(overlap))
        total += (exposed_s / measured.threshold_s - 1) ** 2
    return total
