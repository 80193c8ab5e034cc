import pytest
import torch

import aiacc
from aiacc import _core
from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack

#: Beyond 256 triangles are cut into squares of 128, with a rest or without.
FORMS = [(1, 1), (5, 5), (7,), (3, 4, 4), (256, 256), (257, 257), (2, 300, 300), (384, 384), (5, 5)]


def symmetric(*shape, dtype=torch.float32):
    values = torch.randn(shape, dtype=dtype)
    return values + values.mT if len(shape) > 1 else values


def test_there_and_back_in_every_form_and_in_a_part_of_another_tensor():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        factors = [symmetric(*shape, dtype=dtype) for shape in FORMS]
        size = sum(packed_size(factor.shape) for factor in factors)
        assert size == 1 + 15 + 7 + 30 + 32_896 + 33_153 + 2 * 45_150 + 73_920 + 15
        flat = torch.full((size + 2,), -7.0, dtype=dtype)
        pack(factors, flat[1:-1])
        assert flat[0] == flat[-1] == -7
        back = [torch.full_like(factor, float("nan")) for factor in factors]
        unpack(flat[1:-1], back)
        for factor, result in zip(factors, back, strict=True):
            assert torch.equal(factor, result)
    for dim in (4, 300):
        wide = symmetric(dim + 2, dim + 2)
        flat = torch.empty(packed_size((dim, dim)))
        pack([wide[:dim, :dim]], flat)
        back = torch.zeros(dim + 2, dim + 2)
        unpack(flat, [back[1:-1, 1:-1]])
        assert torch.equal(back[1:-1, 1:-1], wide[:dim, :dim])
        assert float(back[0].abs().max()) == float(back[:, -1].abs().max()) == 0


def test_rows_of_upper_triangles_are_in_order_and_nothing_else_is_read():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), 4.0, 5.0], [float("nan")] * 2 + [6.0]])
    flat = torch.empty(6)
    pack([matrix], flat)
    assert flat.tolist() == [1, 2, 3, 4, 5, 6]
    large = symmetric(300, 300)
    flat = torch.empty(45_150)
    pack([large.triu() + torch.full((300, 300), float("nan")).tril(-1)], flat)
    assert torch.equal(flat.sort().values, large[tuple(torch.triu_indices(300, 300))].sort().values)


def test_what_is_packed_enters_running_means():
    torch.manual_seed(1)
    means = [symmetric(*shape) for shape in FORMS]
    added = [symmetric(*shape) for shape in FORMS]
    expected = [0.75 * mean + 0.25 * 3.0 * one for mean, one in zip(means, added, strict=True)]
    # The first one is the mean, whatever the memory holds.
    means.append(torch.full((5, 5), float("nan")))
    added.append(symmetric(5, 5))
    expected.append(3.0 * added[-1])
    entries = []
    for mean, one in zip(means, added, strict=True):
        flat = torch.empty(packed_size(one.shape))
        pack([one], flat)
        entries.append(Entry(mean, flat, 3.0, 0.0 if mean is means[-1] else 0.75))
    average_packed(entries)
    for mean, one in zip(means, expected, strict=True):
        torch.testing.assert_close(mean, one)


def test_a_gpu_that_is_not_there_packs_nothing():
    for work in ("pack", "unpack", "average"):
        queue = getattr(_core, f"{work}_factors_on_gpu")
        with pytest.raises((ValueError, aiacc.EngineError)):
            queue([], float64=False, device=1000, stream=0)


def test_bad_sizes():
    with pytest.raises(ValueError, match="expected one axis of 6 elements"):
        pack([torch.eye(3)], torch.empty(9))
    with pytest.raises(ValueError, match="expected one axis of 6 elements"):
        unpack(torch.empty(2, 3), [torch.eye(3)])
    with pytest.raises(ValueError, match="expected d, d x d, or n x d x d"):
        packed_size((3, 4))
