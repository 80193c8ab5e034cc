"""The core's kernels for packed factors: as torch on the CPU, captured, without waiting."""

from __future__ import annotations

import pytest
import torch

from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack
from tests.gpu import factor_bodies

DIMS = (64, 300, 1153)


@pytest.fixture
def factors():
    made = []
    for dim in DIMS:
        values = torch.randn(dim, dim, device="cuda")
        made.append(values + values.mT)
    return made


@pytest.fixture
def flat():
    return torch.zeros(sum(packed_size((dim, dim)) for dim in DIMS), device="cuda")


def test_every_bit_is_where_the_cpu_has_it():
    factor_bodies.packed_factors()


def test_they_run_on_the_current_stream_and_wait_for_nothing(factors, flat):
    found = [torch.zeros_like(factor) for factor in factors]
    pack(factors, flat)  # loads the kernels
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            for factor in factors:
                factor.mul_(2)
            pack(factors, flat)
            unpack(flat, found)
        assert not side.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    assert all(map(torch.equal, found, factors))


def test_a_graph_holds_them(factors, flat):
    means = [torch.zeros_like(factor) for factor in factors]
    sizes = [packed_size(factor.shape) for factor in factors]
    entries = [Entry(*pair, 1.0, 0.5) for pair in zip(means, flat.split(sizes), strict=True)]
    pack(factors, flat)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pack(factors, flat)
        average_packed(entries)
    for _ in range(2):
        graph.replay()
    for mean, factor in zip(means, factors, strict=True):
        torch.testing.assert_close(mean, 0.75 * factor)
