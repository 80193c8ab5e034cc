"""Packed factors of K-FAC on a GPU, against the same on the CPU."""

from __future__ import annotations

from unittest import mock

import torch

import aiacc.torch as hvd
from aiacc.kfac import kernels
from aiacc.kfac.kernels import Entry, queue
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack
from tests.gpu.bodies import begin

#: Matrices from 257 on are cut into pieces; one launch takes 73 factors.
SHAPES = [
    *((dim, dim) for dim in (1, 5, 63, 64, 65, 128, 130, 255, 256, 257, 300, 384, 576, 1153)),
    *((3, 4, 4), (2, 300, 300), (1, 129, 129), (7,)),
    *((dim, dim) for dim in range(1, 70)),
]


def packed_factors() -> None:
    """Every bit is where the CPU has it, and kernels take all that they should."""
    for dtype in (torch.float32, torch.float64):
        _there_and_back(dtype)
    with mock.patch.object(kernels, "_problem", return_value="built without nvcc"):
        _there_and_back(torch.float32)
    _parts_of_wider_memory()
    _means()
    left = queue("pack", _entries(torch.float32) + _entries(torch.float64))
    assert [entry.factor.dim() for entry in left] == [1, 1]
    assert len(queue("pack", [Entry(*(t.half() for t in _entries(torch.float32)[0][:2]))])) == 1


def training_with_kfac() -> None:
    """Steps with factors that travel, on the GPU and on the CPU."""
    begin()
    for found, expected in zip(_trained("cuda"), _trained("cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    hvd.shutdown()


def _trained(device: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2 + hvd.rank())
    layers = torch.nn.Linear(20, 300, device="cpu"), torch.nn.Linear(300, 4, device="cpu")
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])
    if device == "cuda":
        for parameter in model.parameters():
            parameter.data = parameter.data.cuda()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    kfac = hvd.KFAC(model, optimizer, damping=0.1)
    for _ in range(4):
        inputs, targets = (
            torch.randn(64, width, generator=generator, device="cpu") for width in (20, 4)
        )
        if device == "cuda":
            inputs, targets = inputs.cuda(), targets.cuda()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        kfac.step()
        optimizer.step()
    kfac.detach()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def _made(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """On the CPU, not symmetric: lower triangles must not matter."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype, device="cpu") for shape in SHAPES]


def _flat(factors: list[torch.Tensor]) -> torch.Tensor:
    size = sum(packed_size(factor.shape) for factor in factors)
    device = "cuda" if factors[0].is_cuda else "cpu"
    return torch.zeros(size, dtype=factors[0].dtype, device=device)


def _entries(dtype: torch.dtype) -> list[Entry]:
    factors = [factor.cuda() for factor in _made(dtype, 1)]
    return [Entry(factor, _flat([factor])) for factor in factors]


def _there_and_back(dtype: torch.dtype) -> None:
    expected = _made(dtype, 2)
    found = [factor.cuda() for factor in expected]
    flats = _flat(expected), _flat(found)
    for factors, flat in zip((expected, found), flats, strict=True):
        pack(factors, flat)
        for factor in factors:
            factor.fill_(-1)
        unpack(flat, factors)
    assert torch.equal(flats[1].cpu(), flats[0])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.cpu(), other)


def _parts_of_wider_memory() -> None:
    for dim in (5, 300):
        wide = torch.zeros(dim + 3, dim + 3, device="cuda")
        inner = torch.randn(dim, dim, generator=torch.Generator().manual_seed(3), device="cpu")
        inner = (inner + inner.mT).cuda()
        flat = torch.zeros(packed_size((dim, dim)) + 1, device="cuda")[1:]
        pack([inner], flat)
        unpack(flat, [wide[1:-2, 2:-1]])
        assert torch.equal(wide[1:-2, 2:-1], inner)
        assert int(wide.count_nonzero()) == int(inner.count_nonzero())
        pack([wide[1:-2, 2:-1]], flat.zero_())
        unpack(flat, [inner.zero_()])
        assert torch.equal(wide[1:-2, 2:-1], inner)


def _means() -> None:
    """Two steps enter; of the first there is no mean to read."""
    expected = _made(torch.float32, 4)
    found = [torch.full_like(factor, float("nan"), device="cuda") for factor in expected]
    for step, kept in enumerate((0.0, 0.95, 0.25)):
        for means in (expected, found):
            given = _made(torch.float32, 5 + step)
            if means[0].is_cuda:
                given = [factor.cuda() for factor in given]
            parts = [_flat([factor]) for factor in given]
            for factor, part in zip(given, parts, strict=True):
                pack([factor], part)
            average_packed(
                [Entry(*pair, 0.125 * 3, kept) for pair in zip(means, parts, strict=True)]
            )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=1e-6)
            assert one.dim() == 1 or torch.equal(one, one.mT)
