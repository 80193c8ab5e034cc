"""``python -m bench.second_order.parts``: factors, packing, inverses and steps, beside peers.

One process, one thread, CPU time, so that what else the machine does matters little. Ours and the
peers take turns; ratios are those of medians. Results agree, or the command ends with an error.
``--steps`` measures steps of trainings by how often factors are made, ``--write`` makes the tables
of docs/kfac.md from both result files.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import aiacc.torch as hvd
from aiacc.kfac.factors import gradient_factor, input_factor
from aiacc.kfac.inverses import decompose, invert
from aiacc.kfac.packing import pack, packed_size, unpack
from aiacc.planning.cost import duration
from bench import machine
from bench.network import runs
from bench.report import between_markers
from bench.second_order import steps

RESULT = machine.ROOT / "bench" / "results" / "kfac_parts.json"
STEPS_RESULT = machine.ROOT / "bench" / "results" / "kfac_steps.json"
PAGE = machine.ROOT / "docs" / "kfac.md"
_MARK = "bench:kfac-parts"
BATCH = 8
#: Convolutions of ResNet-50: channels in and out, kernel, stride, size of the image.
CONVOLUTIONS = (
    (3, 64, 7, 2, 224),
    (64, 64, 3, 1, 56),
    (128, 128, 3, 1, 28),
    (256, 256, 3, 1, 14),
    (512, 512, 3, 1, 7),
    (256, 64, 1, 1, 56),
)
PACKED = (147, 576, 1152, 2304, 4608)
#: Factors of equal dimension, and how many of them.
INVERTED = ((64, 16), (256, 8), (512, 4), (1024, 2), (2304, 1))
DAMPING = 1e-3

Call = Callable[[], Any]


@dataclass
class Row:
    """One kind of work by ours and by peers, the first of which the ratio is to."""

    key: str
    title: str
    calls: dict[str, Call]
    #: Whether a peer computes the same, to be compared.
    alike: set[str] = field(default_factory=set)
    tolerance: float = 1e-3


def rows() -> Iterator[Row]:
    """All work, made one by one for they are large."""
    torch.manual_seed(0)
    for channels, features, kernel, stride, size in CONVOLUTIONS:
        yield from _factor_rows(
            nn.Conv2d(channels, features, kernel, stride=stride, padding=kernel // 2, bias=False),
            torch.randn(BATCH, channels, size, size),
        )
    yield from _factor_rows(nn.Linear(2048, 1000), torch.randn(512, 2048))
    for dim in PACKED:
        yield from _packing_rows(dim)
    for dim, count in INVERTED:
        yield _inversion_row(dim, count)


def _factor_rows(module: nn.Module, inputs: Tensor) -> Iterator[Row]:
    if isinstance(module, nn.Conv2d):
        title = (
            f"{module.kernel_size[0]} x {module.kernel_size[0]}, {module.in_channels} to "
            f"{module.out_channels}, {inputs.shape[-1]} x {inputs.shape[-1]}"
        )
    else:
        title = "fully connected, 2048 to 1000"
    gradients = torch.randn_like(module(inputs).detach())
    yield Row(
        f"A {title}",
        f"A of {title}",
        {"ours": lambda: input_factor(module, inputs), "peer": lambda: plain_a(module, inputs)},
        {"peer"},
    )
    yield Row(
        f"G {title}",
        f"G of {title}",
        {
            "ours": lambda: gradient_factor(module, gradients),
            "peer": lambda: plain_g(module, gradients),
        },
        {"peer"},
    )


def plain_a(module: nn.Module, inputs: Tensor) -> Tensor:
    """A as it is usually computed: unfold, transpose, a column of ones, one product."""
    rows = inputs
    if isinstance(module, nn.Conv2d):
        unfolded = functional.unfold(
            inputs, module.kernel_size, padding=module.padding, stride=module.stride
        )
        rows = unfolded.transpose(1, 2).reshape(-1, unfolded.shape[1])
    if module.bias is not None:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    return rows.t() @ rows / len(rows)


def plain_g(module: nn.Module, gradients: Tensor) -> Tensor:
    """G as it is usually computed."""
    rows = gradients
    if isinstance(module, nn.Conv2d):
        rows = gradients.movedim(1, -1).reshape(-1, gradients.shape[1])
    return rows.t() @ rows * len(gradients)


def _packing_rows(dim: int) -> Iterator[Row]:
    values = torch.randn(dim, dim)
    matrix, back = values + values.t(), torch.empty(dim, dim)
    flat = torch.empty(packed_size((dim, dim)))
    at = torch.triu_indices(dim, dim)

    def unpacked_by_indices() -> None:
        back[at[0], at[1]] = flat
        back[at[1], at[0]] = flat

    other = torch.empty(dim, dim)
    pack([matrix], flat)
    yield Row(
        f"pack {dim}",
        f"pack, {dim}",
        {
            "ours": lambda: pack([matrix], flat),
            "peer": lambda: matrix[at[0], at[1]],
            "copy of the matrix": lambda: other.copy_(matrix),
        },
    )
    pack([matrix], flat)
    yield Row(
        f"unpack {dim}",
        f"unpack, {dim}",
        {
            "ours": lambda: unpack(flat, [back]),
            "peer": unpacked_by_indices,
            "copy of the matrix": lambda: other.copy_(matrix),
        },
    )


def _inversion_row(dim: int, count: int) -> Row:
    values = torch.randn(count, dim, 2 * dim)
    stack = values @ values.mT / (2 * dim)
    factors = list(stack.unbind())
    dampings = [torch.tensor(DAMPING)] * count
    eye = DAMPING * torch.eye(dim)
    return Row(
        f"invert {count} {dim}",
        f"inverses, {count} x {dim}",
        {
            "ours": lambda: torch.stack(_known(invert(factors, dampings))),
            "peer": lambda: torch.linalg.inv(stack + eye),
            "one by one": lambda: torch.stack(
                [_known(invert([factor], dampings[:1]))[0] for factor in factors]
            ),
            "eigenvectors": lambda: decompose(factors),
        },
        {"peer", "one by one"},
    )


def _known(inverses: list[Tensor | None]) -> list[Tensor]:
    found = [inverse for inverse in inverses if inverse is not None]
    if len(found) != len(inverses):
        raise SystemExit("[bench.second_order] a factor could not be inverted")
    return found


def measured(row: Row, repeats: int) -> dict[str, Any]:
    """CPU seconds of each call, taken in turns, after one that does not count and is compared.

    Raises:
        SystemExit: Results differ.
    """
    first = {name: call() for name, call in row.calls.items()}
    for name in row.alike:
        difference = float((first[name] - first["ours"]).abs().max() / first["ours"].abs().max())
        if not difference <= row.tolerance:
            raise SystemExit(f"[bench.second_order] {row.title}: {name} differs by {difference}")
    samples: dict[str, list[float]] = {name: [] for name in row.calls}
    for _ in range(repeats):
        for name, call in row.calls.items():
            start = time.process_time()
            call()
            samples[name].append(round(time.process_time() - start, 7))
    return {"key": row.key, "title": row.title, "samples_s": samples}


def table(report: dict[str, Any]) -> str:
    """Markdown: medians and ratios of them. Pure."""
    lines = [
        "| work | ours | usual | ours / usual | for comparison |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in report["rows"]:
        medians = {name: median(samples) for name, samples in row["samples_s"].items()}
        others = [
            f"{name}: {duration(seconds)}"
            for name, seconds in medians.items()
            if name not in ("ours", "peer")
        ]
        lines.append(
            f"| {row['title']} | {duration(medians['ours'])} | {duration(medians['peer'])} "
            f"| {medians['ours'] / medians['peer']:.2f} | {', '.join(others)} |"
        )
    return "\n".join([*lines, "", _provenance(report)])


def _provenance(report: dict[str, Any]) -> str:
    return (
        f"Measured {report['when']} at commit {report['commit'][:12]}: CPU time of one thread of "
        f"{report['machine']['cpu']}, torch {report['versions']['torch']}, medians of "
        f"{report['repeats']} in turns; load average {report['load_before'][0]} before, "
        f"{report['load_after'][0]} after."
    )


def with_tables(page: str, of_parts: dict[str, Any], of_steps: dict[str, Any]) -> str:
    """The page with the tables of both reports."""
    text = [table(of_parts), steps.table(of_steps["rows"]), _provenance(of_steps)]
    return between_markers(page, "\n\n".join(text), str(PAGE), _MARK)


def main() -> int:
    """Measure and write a result file, or the page from both."""
    parser = argparse.ArgumentParser(prog="python -m bench.second_order.parts", description=__doc__)
    parser.add_argument("--json", type=Path, help="result file, of those in bench/results if not")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="rows whose key has it")
    parser.add_argument("--steps", action="store_true", help="whole steps instead of parts")
    parser.add_argument("--write", action="store_true", help="the tables of docs/kfac.md")
    options = parser.parse_args()
    if options.write:
        of_parts, of_steps = (json.loads(path.read_text()) for path in (RESULT, STEPS_RESULT))
        PAGE.write_text(with_tables(PAGE.read_text(), of_parts, of_steps))
        return 0
    torch.set_num_threads(1)
    report: dict[str, Any] = {**runs.begun(), "repeats": options.repeats, "batch": BATCH}
    report["load_before"] = machine.load()
    if options.steps:
        hvd.init()
        report["rows"] = steps.measured(options.repeats)
        hvd.shutdown()
        print(steps.table(report["rows"]))
    else:
        chosen = (row for row in rows() if options.only in row.key)
        report["rows"] = [measured(row, options.repeats) for row in chosen]
    report["load_after"] = machine.load()
    path = options.json or (STEPS_RESULT if options.steps else RESULT)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(_provenance(report) if options.steps else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
