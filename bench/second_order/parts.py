"""Row kfac.parts: factors, packing and inverses of layers of ResNet-50, beside the usual ways.

One process, one thread, CPU time, so that what else the machine does matters little. Results are
compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from aiacc.kfac.factors import gradient_factor, input_factor
from aiacc.kfac.inverses import invert
from aiacc.kfac.packing import pack, packed_size, unpack
from bench.record import Run
from bench.tables import matrix
from bench.turns import of_cpu, timed

ROUNDS, BATCH = 7, 8
#: Convolutions of ResNet-50: channels in and out, kernel, stride, size of the image.
CONVOLUTIONS = {
    "7x7": (3, 64, 7, 2, 224),
    "3x3-64": (64, 64, 3, 1, 56),
    "3x3-128": (128, 128, 3, 1, 28),
    "3x3-256": (256, 256, 3, 1, 14),
    "3x3-512": (512, 512, 3, 1, 7),
    "1x1": (256, 64, 1, 1, 56),
}
PACKED = (147, 576, 1152, 2304, 4608)
#: Factors of equal dimension, and how many of them.
INVERTED = {64: 16, 256: 8, 512: 4, 1024: 2, 2304: 1}
CELLS = (
    *(f"{factor}:{layer}" for layer in (*CONVOLUTIONS, "linear") for factor in "AG"),
    *(f"{way}:{dim}" for dim in PACKED for way in ("pack", "unpack")),
    *(f"invert:{dim}" for dim in INVERTED),
)
OURS, PEERS = ("ours",), ("usual",)
TITLES = {"ours": "aiacc", "usual": "the usual way"}
DAMPING, TOLERANCE = 1e-3, 1e-3

Calls = dict[str, Callable[[], Any]]


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """CPU seconds of ours and of the others.

    Raises:
        RuntimeError: Results differ.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, what = cell.split(":")
    if kind in "AG":
        title, calls = _factor(kind, what)
    elif kind == "invert":
        title, calls = _inverses(int(what))
    else:
        title, calls = f"{kind}, {what}", _packing(kind, int(what))
    if kind != "pack":
        ours, usual = (torch.stack(list(calls[name]())) for name in ("ours", "usual"))
        apart = float((usual - ours).abs().max() / ours.abs().max())
        if not apart <= TOLERANCE:
            raise RuntimeError(f"{title}: ours and usual differ by {apart} (expected the same)")
    samples = timed(calls, rounds or ROUNDS, clock=of_cpu)
    return {"title": title, "unit": "s", "samples": samples}


def _factor(kind: str, layer: str) -> tuple[str, Calls]:
    if layer == "linear":
        module: nn.Module = nn.Linear(2048, 1000)
        inputs, title = torch.randn(512, 2048), "fully connected, 2048 to 1000"
    else:
        channels, features, kernel, stride, size = CONVOLUTIONS[layer]
        module = nn.Conv2d(
            channels, features, kernel, stride=stride, padding=kernel // 2, bias=False
        )
        inputs = torch.randn(BATCH, channels, size, size)
        title = f"{kernel} x {kernel}, {channels} to {features}, {size} x {size}"
    ours: Callable[..., Tensor] = input_factor
    usual, given = plain_a, inputs
    if kind == "G":
        ours, usual, given = gradient_factor, plain_g, torch.randn_like(module(inputs).detach())
    calls: Calls = {"ours": lambda: ours(module, given), "usual": lambda: usual(module, given)}
    return f"{kind} of {title}", calls


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


def _packing(way: str, dim: int) -> Calls:
    """Packed are the same elements in another order. Usual are kept indices and memory."""
    values = torch.randn(dim, dim)
    matrix = values + values.t()
    rows, columns = torch.triu_indices(dim, dim)
    upper, full = rows * dim + columns, torch.empty(dim, dim, dtype=torch.long)
    full[rows, columns] = full[columns, rows] = torch.arange(len(upper))
    flat, triangle = torch.empty(packed_size((dim, dim))), matrix.view(-1)[upper]
    back, other = torch.empty(dim, dim), torch.empty(dim, dim)
    pack([matrix], flat)

    def unpacked() -> Tensor:
        unpack(flat, [back])
        return back

    def gathered(given: Tensor, indices: Tensor, out: Tensor) -> Tensor:
        torch.index_select(given.view(-1), 0, indices.view(-1), out=out.view(-1))
        return out

    calls: Calls = {"ours": unpacked, "usual": lambda: gathered(triangle, full, other)}
    if way == "pack":
        calls["ours"] = lambda: pack([matrix], flat)
        calls["usual"] = lambda: gathered(matrix, upper, triangle)
    return calls


def _inverses(dim: int) -> tuple[str, Calls]:
    count = INVERTED[dim]
    values = torch.randn(count, dim, 2 * dim)
    stack = values @ values.mT / (2 * dim)
    factors, dampings = list(stack.unbind()), [torch.tensor(DAMPING)] * count
    eye = DAMPING * torch.eye(dim)

    return f"inverses, {count} x {dim}", {
        "ours": lambda: invert(factors, dampings),
        "usual": lambda: torch.cholesky_inverse(
            torch.linalg.cholesky_ex(torch.stack(factors) + eye).L
        ),
    }


def tables(runs: Sequence[Run]) -> str:
    """Medians of CPU time, and ours over the usual way's. Pure."""
    return matrix(runs, TITLES, PEERS, OURS)
