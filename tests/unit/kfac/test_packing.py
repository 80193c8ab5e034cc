import pytest
import torch
from torch import nn

from aiacc.kfac.packing import pack, packed_size, unpack
from aiacc.kfac.rows import factor_shapes
from aiacc.planning.models import MODELS
from aiacc.planning.models.kronecker import layers_of


def symmetric(*shape, dtype=torch.float32):
    values = torch.randn(shape, dtype=dtype)
    return values + values.mT if len(shape) > 1 else values


def test_there_and_back_in_every_form():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        factors = [
            symmetric(*shape, dtype=dtype)
            for shape in ((1, 1), (5, 5), (7,), (3, 4, 4), (33, 33), (5, 5))
        ]
        size = sum(packed_size(factor.shape) for factor in factors)
        assert size == 1 + 15 + 7 + 30 + 561 + 15
        flat = torch.full((size + 2,), -7.0, dtype=dtype)
        pack(factors, flat[1:-1])
        assert flat[0] == flat[-1] == -7
        back = [torch.full_like(factor, float("nan")) for factor in factors]
        unpack(flat[1:-1], back)
        for factor, result in zip(factors, back, strict=True):
            assert torch.equal(factor, result)


def test_rows_of_upper_triangles_are_in_order_and_nothing_else_is_read():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), 4.0, 5.0], [float("nan")] * 2 + [6.0]])
    flat = torch.empty(6)
    pack([matrix], flat)
    assert flat.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_factor_that_is_a_part_of_another_tensor():
    wide = symmetric(6, 6)
    flat = torch.empty(10)
    pack([wide[:4, :4]], flat)
    back = torch.empty(4, 4)
    unpack(flat, [back])
    assert torch.equal(back, wide[:4, :4])


def test_sizes_of_resnet_50():
    sizes = [0, 0]
    for layer in layers_of(MODELS["resnet50"].parameters()):
        out, width = layer.g_dim, layer.a_dim
        bias = len(layer.parameters) > 1
        module = nn.Linear(width - bias, out, bias=bias, device="meta")
        for kind, shape in enumerate(factor_shapes(module)):
            sizes[kind] += packed_size(shape)
    assert sizes == [62_348_671, 14_618_356]


def test_bad_sizes():
    with pytest.raises(ValueError, match="expected one axis of 6 elements"):
        pack([torch.eye(3)], torch.empty(9))
    with pytest.raises(ValueError, match="expected one axis of 6 elements"):
        unpack(torch.empty(2, 3), [torch.eye(3)])
    with pytest.raises(ValueError, match="expected d, d x d, or n x d x d"):
        packed_size((3, 4))
