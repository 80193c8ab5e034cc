"""What the bench can measure. Imports nothing heavy: a row's module is loaded when it is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import ROOT

RESULTS = ROOT / "bench" / "results"
#: Sources that every row which starts ranks of aiacc depends on.
PRODUCT = ("csrc", "aiacc")


@dataclass(frozen=True)
class Row:
    """One subject: measured by one command, kept in one file, shown in one place of one page.

    Its module has a docstring, whose first line says what is compared, and:

    * ``CELLS``: the names of its cells. A cell is one measurement, in which all contenders take
      turns; it is measured, kept and replaced by itself.
    * ``measure(cell, rounds)``: what is kept of the cell, at least ``{"title": str, "unit": str,
      "samples": {contender: [[value, ...] of each job]}}``. ``rounds`` is None for the row's own
      number. A simulation gives ``"samples": {}`` and the parameters it had. What must not be goes
      into ``"wrong": [text, ...]``: the command ends with 1, and checks name it.
    * ``tables(runs)``: Markdown, from the kept runs of all cells. Pure.
    * ``plot(runs)``, if it has one: a figure of matplotlib.
    * ``OURS``, ``PEERS`` and ``TITLES``, if it compares aiacc with others: keys of contenders, and
      their titles by key. ``contests(run)``, if a cell has several works: a run for each.

    Attributes:
        name: As on the command line.
        page: Where its tables stand, between the marks ``bench:NAME``.
        paths: Sources that it depends on, besides its module.
        needs: Of "root", "gpu", "quiet" and the names of packages.
        minutes: How long all its cells take on two cores, about.
        module: Where it is in bench/, unless that is its name.
        watched: Cells that `make nightly` compares; the module says OURS and PEERS.
        simulated: Whether it computes what it shows, and has no samples.
    """

    name: str
    page: str
    paths: tuple[str, ...]
    needs: tuple[str, ...] = ()
    minutes: float = 1.0
    module: str = ""
    watched: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def result(self) -> Path:
        """The file of its runs; a plot stands beside it."""
        return RESULTS / f"{self.name}.json"

    @property
    def mark(self) -> str:
        """What marks its place in the page."""
        return f"bench:{self.name}"

    @property
    def sources(self) -> tuple[str, ...]:
        """Paths that decide what it measures."""
        return (f"{self._place.replace('.', '/')}.py", *self.paths)

    def load(self) -> Any:
        """Its module."""
        return importlib.import_module(self._place)

    @property
    def _place(self) -> str:
        return f"bench.{self.module or self.name}"


#: Sources that decide what engines send between hosts.
_BED = ("csrc", "bench/bed/bed.py", "bench/bed/plan.py", "bench/bed/launch.py")
_RELAY, _ALLREDUCE = "bench/bed/native/relay.c", "bench/network/allreduce.py"
_CELLS = ("bench/network/cells.py", "bench/network/workloads.py")
_STEP = (*_CELLS, "aiacc/torch", "bench/network/step.py", "bench/network/device.py")
_IN_TURN = ("csrc/core", "csrc/engines", *_STEP)
_KFAC = ("aiacc/kfac", "aiacc/torch/kfac")
_KFAC_PARTS = ("factors", "rows", "products", "packing", "inverses")
_LARS = ("csrc/kernels/lars.cc", "csrc/kernels/lars.h", "csrc/kernels/vector")
_CODES = ("csrc/kernels", "bench/micro/codes_bench.cc")
_RANKS = (*PRODUCT, "bench/collectives")
_ON_GPU = ("csrc/cuda", "csrc/kernels", "bench/gpu/works.py", "bench/gpu/gpu_bench.cc")
_RANKS_ON_GPU = ("csrc", "aiacc/torch", "bench/gpu", "bench/collectives")
_ON_BED, _QUIET, _GPU = ("root", "quiet"), ("quiet",), ("gpu",)
_NETWORK, _BENCHMARKS, _CODED = "docs/network.md", "docs/benchmarks.md", "docs/compression.md"

ROWS: tuple[Row, ...] = (
    Row(
        "network.training",
        _NETWORK,
        (*_BED, *_STEP, "aiacc/autotune"),
        _ON_BED,
        105,
        watched=("resnet50:300",),
    ),
    Row("network.allreduce", _NETWORK, _BED, (*_ON_BED, "mpich"), 10),
    Row("network.engines", _NETWORK, (*_BED, _ALLREDUCE), (*_ON_BED, "mpich"), 4),
    Row("network.wan", _NETWORK, (*_BED, _ALLREDUCE, _RELAY), _ON_BED, 20),
    Row("network.units", _NETWORK, (*_BED, _RELAY), _ON_BED, 12),
    Row("network.idle", _NETWORK, (*_BED, *_STEP, _RELAY), _ON_BED, 17),
    Row("network.ablation", _NETWORK, (*_BED, *_STEP), _ON_BED, 20),
    Row(
        "network.faults",
        _NETWORK,
        (*PRODUCT, "bench/network/faults", "bench/bed/native"),
        ("root",),
        45,
        "network.faults.row",
    ),
    Row(
        "network.planning",
        "docs/planning.md",
        (*_IN_TURN, "csrc/control", "aiacc/planning"),
        _ON_BED,
        145,
    ),
    Row(
        "network.compression",
        _CODED,
        (*_IN_TURN, "csrc/kernels", "aiacc/compression"),
        _ON_BED,
        90,
    ),
    Row(
        "network.kfac",
        "docs/kfac.md",
        (
            "csrc/core",
            "csrc/engines",
            *_CELLS,
            *_KFAC,
            "aiacc/planning",
            "bench/network/second_order/step.py",
        ),
        _ON_BED,
        20,
        "network.second_order.row",
    ),
    Row("optim.steps", "docs/optimizers.md", ("aiacc/optim", *_LARS), ("timm", "quiet"), 3),
    Row(
        "optim.muon",
        "docs/optimizers.md",
        ("aiacc/torch/parallel", "aiacc/planning/division", "csrc/engines"),
        _QUIET,
        3,
    ),
    Row(
        "kfac.parts",
        "docs/kfac.md",
        tuple(f"aiacc/kfac/{name}.py" for name in _KFAC_PARTS),
        minutes=3,
        module="second_order.parts",
    ),
    Row("kfac.steps", "docs/kfac.md", _KFAC, minutes=5, module="second_order.steps"),
    Row(
        "convergence.compression",
        _CODED,
        (
            *("bench/training", "examples/digits.py", "examples/compressed_text.py"),
            *("aiacc/compression", "csrc/kernels"),
        ),
        ("root",),
        85,
        "training.compression",
    ),
    Row(
        "convergence.kfac",
        "docs/kfac.md",
        ("bench/second_order", *_KFAC),
        ("pytorch_optimizer",),
        20,
        "second_order.convergence",
    ),
    Row(
        "negotiation",
        _NETWORK,
        ("csrc/core/negotiation", "csrc/control", "bench/micro/negotiation_bench.cc"),
        minutes=6,
    ),
    Row(
        "data",
        "docs/data.md",
        ("aiacc/data", "bench/data"),
        ("quiet", "aiohttp", "diskcache", "pillow", "webdataset"),
        22,
        "data.epochs",
    ),
    Row("selection", _CODED, _CODES, _QUIET, 4),
    Row("quantisation", _CODED, _CODES, _QUIET, 1),
    Row(
        "simulated.kfac",
        "docs/kfac_simulated.md",
        ("aiacc/kfac", "aiacc/planning"),
        minutes=2,
        simulated=True,
    ),
    Row("simulated.planning", "docs/planning.md", ("aiacc/planning",), simulated=True),
    Row(
        "collectives",
        _BENCHMARKS,
        _RANKS,
        _QUIET,
        15,
        "collectives.calls",
        ("gradients:shm", "gradients:tcp", "small:shm", "small:tcp"),
    ),
    Row(
        "blocking",
        _BENCHMARKS,
        _RANKS,
        ("mpi4py", "quiet"),
        20,
        "collectives.blocking",
        ("shm", "tcp"),
    ),
    Row(
        "step", _BENCHMARKS, _RANKS, _QUIET, 15, "collectives.step", ("float32:shm", "float32:tcp")
    ),
    Row(
        "tensorflow",
        _BENCHMARKS,
        _RANKS,
        ("tensorflow", "quiet"),
        10,
        "collectives.in_tensorflow",
        ("step:shm",),
    ),
    Row("idle", _BENCHMARKS, ("csrc",), minutes=2, module="collectives.idle"),
    Row("compile", "docs/torch-compile.md", ("csrc", "aiacc/torch"), _QUIET, 5),
    Row("gpu.kernels", "docs/gpu.md", _ON_GPU, _GPU),
    Row("gpu.codes", "docs/gpu.md", _ON_GPU, _GPU),
    Row("gpu.optim", "docs/gpu.md", (*_ON_GPU, "aiacc/optim"), _GPU),
    Row("gpu.factors", "docs/gpu.md", (*_ON_GPU, "aiacc/kfac"), _GPU),
    Row("gpu.step", "docs/gpu.md", _RANKS_ON_GPU, _GPU),
    Row("gpu.allreduce", "docs/gpu.md", _RANKS_ON_GPU, _GPU, 5),
)


def row_of(name: str) -> Row:
    """The row of that name.

    Raises:
        ValueError: There is none.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise ValueError(f"row {name!r} (expected some of {', '.join(row.name for row in ROWS)})")
