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

    Its module has:

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
        title: What is compared, in a line.
        module: Where it is.
        page: Where its tables stand, between the marks ``bench:NAME``.
        paths: Sources that it depends on, besides its module.
        needs: Of "root", "gpu", "quiet" and the names of packages.
        minutes: How long all its cells take on two cores, about.
        watched: Cells that `make nightly` compares; the module says OURS and PEERS.
        simulated: Whether it computes what it shows, and has no samples.
    """

    name: str
    title: str
    module: str
    page: str
    paths: tuple[str, ...] = PRODUCT
    needs: tuple[str, ...] = ()
    minutes: float = 1.0
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
        path = self.module.replace(".", "/")
        own = f"{path}.py" if (ROOT / f"{path}.py").exists() else path
        return (own, *self.paths)

    def load(self) -> Any:
        """Its module."""
        return importlib.import_module(self.module)


#: Sources that decide what engines send between hosts.
_BED = ("csrc", "bench/bed/bed.py", "bench/bed/program.py", "bench/bed/launch.py")
_ON_BED = ("root", "quiet")
_NETWORK = ("bench/network/cells.py", "bench/network/step.py", "bench/network/workloads.py")
_STEP = (*_NETWORK, "aiacc/torch", "bench/network/device.py")
_BENCHMARKS = "docs/benchmarks.md"
_ON_GPU = ("csrc/cuda", "csrc/kernels", "bench/gpu/works.py", "bench/gpu/gpu_bench.cc")
_RANKS_ON_GPU = ("csrc", "aiacc/torch", "bench/gpu/ranks.py")

ROWS: tuple[Row, ...] = (
    Row(
        "network.training",
        "steps of ResNet-50, VGG-16 and BERT between capped hosts: aiacc and DDP over gloo",
        "bench.network.training",
        "docs/network.md",
        (*_BED, *_STEP, "aiacc/autotune"),
        _ON_BED,
        105,
        watched=("resnet50:300",),
    ),
    Row(
        "network.allreduce",
        "bus bandwidth over lanes and hosts, by engines tcp and mpi",
        "bench.network.allreduce",
        "docs/network.md",
        _BED,
        (*_ON_BED, "mpich"),
        10,
    ),
    Row(
        "network.engines",
        "bus bandwidth of every engine with several ranks on each of two hosts",
        "bench.network.engines",
        "docs/network.md",
        (*_BED, "bench/network/allreduce.py"),
        (*_ON_BED, "mpich"),
        4,
    ),
    Row(
        "network.wan",
        "bus bandwidth over lanes and units between hosts with delay and loss",
        "bench.network.wan",
        "docs/network.md",
        (*_BED, "bench/network/allreduce.py", "bench/bed/native/relay.c"),
        _ON_BED,
        20,
    ),
    Row(
        "network.units",
        "sizes of units over delay, for all gradients of ResNet-50",
        "bench.network.units",
        "docs/network.md",
        (*_BED, "bench/bed/native/relay.c"),
        _ON_BED,
        12,
    ),
    Row(
        "network.idle",
        "what connections lose that start slowly again after a pause",
        "bench.network.idle",
        "docs/network.md",
        (*_BED, *_STEP, "bench/bed/native/relay.c"),
        _ON_BED,
        12,
    ),
    Row(
        "network.ablation",
        "what lanes, units, hierarchy and negotiation are worth in a step",
        "bench.network.ablation",
        "docs/network.md",
        (*_BED, *_STEP),
        _ON_BED,
        20,
    ),
    Row(
        "network.faults",
        "what becomes of jobs in which ranks, links or packets are lost",
        "bench.network.faults.row",
        "docs/network.md",
        (*PRODUCT, "bench/network/faults", "bench/bed/native"),
        ("root",),
        45,
    ),
    Row(
        "network.planning",
        "steps with planned buckets on capped hosts, DDP over gloo, and the model of both",
        "bench.network.planning",
        "docs/planning.md",
        ("csrc/core", "csrc/engines", "csrc/control", "aiacc/planning", *_STEP),
        needs=("root", "quiet"),
        minutes=240,
    ),
    Row(
        "network.compression",
        "ways for gradients to travel between capped hosts, and DDP over gloo",
        "bench.network.compression",
        "docs/compression.md",
        ("csrc/core", "csrc/engines", "csrc/kernels", "aiacc/compression", *_STEP),
        needs=("root", "quiet"),
        minutes=180,
    ),
    Row(
        "network.kfac",
        "steps of K-FAC on capped hosts, as published and ours",
        "bench.network.second_order.row",
        "docs/kfac.md",
        (
            *("csrc/core", "csrc/engines", "aiacc/kfac", "aiacc/planning", "aiacc/torch/kfac"),
            *(*_NETWORK, "bench/network/second_order/step.py"),
        ),
        needs=("root", "quiet"),
        minutes=20,
    ),
    Row(
        "optim.steps",
        "a step of LARS and of LAMB beside timm's, and torch's SGD and AdamW",
        "bench.optim.steps",
        "docs/optimizers.md",
        paths=("aiacc/optim", "csrc/kernels/lars.cc", "csrc/kernels/lars.h", "csrc/kernels/vector"),
        needs=("timm", "quiet"),
        minutes=3,
    ),
    Row(
        "optim.muon",
        "Muon, and LARS's norms, divided among ranks or done by each",
        "bench.optim.muon",
        "docs/optimizers.md",
        paths=("aiacc/torch/parallel", "aiacc/planning/division", "csrc/engines"),
        needs=("quiet",),
        minutes=3,
    ),
    Row(
        "kfac.parts",
        "factors, packing and inverses of K-FAC beside the usual ways",
        "bench.second_order.parts",
        "docs/kfac.md",
        paths=(
            *(f"aiacc/kfac/{name}.py" for name in ("factors", "rows", "products", "packing")),
            "aiacc/kfac/inverses.py",
        ),
        minutes=3,
    ),
    Row(
        "kfac.steps",
        "a step with K-FAC, by how often factors and inverses are made",
        "bench.second_order.steps",
        "docs/kfac.md",
        paths=("aiacc/kfac", "aiacc/torch/kfac"),
        minutes=5,
    ),
    Row(
        "convergence.compression",
        "final losses of trainings whose gradients travel compressed, beside float32",
        "bench.training.compression",
        "docs/compression.md",
        paths=(
            *("bench/training", "examples/digits.py", "examples/compressed_text.py"),
            *("aiacc/compression", "csrc/kernels"),
        ),
        needs=("root",),
        minutes=200,
    ),
    Row(
        "convergence.kfac",
        "seconds and steps to a target: K-FAC, SGD, Adam, Muon and SOAP, equally tuned",
        "bench.second_order.convergence",
        "docs/kfac.md",
        paths=("bench/second_order", "aiacc/kfac", "aiacc/torch/kfac"),
        needs=("pytorch_optimizer",),
        minutes=20,
    ),
    Row(
        "negotiation",
        "messages and bytes in which ranks agree on the tensors of a step",
        "bench.negotiation",
        "docs/network.md",
        ("csrc/core/negotiation", "csrc/control", "bench/micro/negotiation_bench.cc"),
        (),
        6,
    ),
    Row(
        "data",
        "epochs over images in a slow origin: aiacc's cache, and others",
        "bench.data.epochs",
        "docs/data.md",
        ("aiacc/data", "bench/data"),
        ("quiet", "aiohttp", "diskcache", "pillow", "webdataset"),
        22,
    ),
    Row(
        "selection",
        "choosing 1 % of a fused buffer on the CPU, and torch's topk",
        "bench.selection",
        "docs/compression.md",
        ("csrc/kernels", "bench/micro/codes_bench.cc"),
        ("quiet",),
        2,
    ),
    Row(
        "quantisation",
        "block codes on the CPU, and a copy of the same memory",
        "bench.quantisation",
        "docs/compression.md",
        ("csrc/kernels", "bench/micro/codes_bench.cc"),
        ("quiet",),
        1,
    ),
    Row(
        "simulated.kfac",
        "published results of SPD-KFAC by the simulator, and ours",
        "bench.simulated.kfac",
        "docs/kfac_simulated.md",
        paths=("aiacc/kfac", "aiacc/planning"),
        minutes=2,
        simulated=True,
    ),
    Row(
        "simulated.planning",
        "steps and scaling of published networks by all planners",
        "bench.simulated.planning",
        "docs/planning.md",
        paths=("aiacc/planning",),
        simulated=True,
    ),
    Row(
        "collectives",
        "collectives of gradients and tensors, against gloo and Horovod",
        "bench.collectives.calls",
        _BENCHMARKS,
        paths=(*PRODUCT, "bench/collectives"),
        needs=("quiet",),
        minutes=15,
        watched=(
            "gradients:shm",
            "gradients:tcp",
            "small:shm",
            "small:tcp",
        ),
    ),
    Row(
        "blocking",
        "a blocking all-reduce by size, against gloo, MPI, oneCCL and UCC",
        "bench.collectives.blocking",
        _BENCHMARKS,
        paths=(*PRODUCT, "bench/collectives"),
        needs=("mpi4py", "quiet"),
        minutes=20,
        watched=(
            "shm",
            "tcp",
        ),
    ),
    Row(
        "step",
        "a training step with a free backward pass, against DDP/gloo and Horovod",
        "bench.collectives.step",
        _BENCHMARKS,
        paths=(*PRODUCT, "bench/collectives"),
        needs=("quiet",),
        minutes=15,
        watched=(
            "float32:shm",
            "float32:tcp",
        ),
    ),
    Row(
        "tensorflow",
        "a step of Keras and its gradients, against tf.distribute",
        "bench.collectives.in_tensorflow",
        _BENCHMARKS,
        paths=(*PRODUCT, "bench/collectives"),
        needs=("tensorflow", "quiet"),
        minutes=10,
        watched=("step:shm",),
    ),
    Row(
        "idle",
        "CPU time of ranks without work, against gloo",
        "bench.collectives.idle",
        _BENCHMARKS,
        paths=("csrc",),
        minutes=2,
    ),
    Row(
        "compile",
        "a step eager, compiled whole, and compiled by blocks",
        "bench.compile",
        "docs/torch-compile.md",
        paths=("csrc", "aiacc/torch"),
        needs=("quiet",),
        minutes=5,
    ),
    *(
        Row(f"gpu.{name}", title, f"bench.gpu.{name}", "docs/gpu.md", paths, ("gpu",), minutes)
        for name, title, paths, minutes in (
            ("kernels", "kernels that pack, and torch's cat and foreach", _ON_GPU, 1),
            ("codes", "block codes and selections, and torch's topk", _ON_GPU, 1),
            ("optim", "LARS and LAMB, and torch's SGD and AdamW", (*_ON_GPU, "aiacc/optim"), 1),
            ("factors", "K-FAC's packed factors, torch's ways", (*_ON_GPU, "aiacc/kfac"), 1),
            ("step", "a step of one or two ranks, and DDP over NCCL", _RANKS_ON_GPU, 1),
            ("allreduce", "sums of two ranks by lanes, units and codecs", _RANKS_ON_GPU, 5),
        )
    ),
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
