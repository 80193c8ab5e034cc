"""Factors inverted, packed for their way to others, and what they make of gradients."""

import math
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import aiacc
from aiacc import _core
from aiacc.kfac import inverses
from aiacc.kfac.inverses import decompose, invert, split_damping
from aiacc.kfac.packing import pack, packed_size, unpack
from aiacc.kfac.precondition import (
    by_eigenvectors,
    by_inverses,
    clip_factor,
    gradient_matrix,
    write_gradient,
)
from aiacc.kfac.rows import factor_shapes


def positive(*shape, dtype=torch.float64):
    rows = torch.randn(*shape[:-1], 3 * shape[-1], dtype=dtype)
    return rows @ rows.mT / (3 * shape[-1])


def damped(matrix, damping):
    return matrix + damping * torch.eye(matrix.shape[-1], dtype=matrix.dtype)


def test_inverses_of_every_form_by_a_call_for_each_dimension_change_no_factor(monkeypatch):
    counted = Mock(wraps=torch.linalg.cholesky_ex)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    torch.manual_seed(0)
    factors = [positive(4, 4), positive(6, 6), positive(4, 4), positive(3, 4, 4)]
    factors.append(torch.rand(5).double())
    each = torch.tensor([0.1, 0.2, 0.3]).double()
    dampings = [*each, each, torch.tensor(0.4).double()]
    before = [factor.clone() for factor in factors]
    found = invert(factors, dampings)
    shapes = [tuple(call.args[0].shape) for call in counted.call_args_list]
    assert sorted(shapes) == [(1, 6, 6), (5, 4, 4)]
    alone = [*zip(factors[:3], dampings, found, strict=False)]
    alone += zip(factors[3], dampings[3], found[3], strict=True)
    for factor, damping, inverse in alone:
        torch.testing.assert_close(inverse, damped(factor, damping).inverse())
    torch.testing.assert_close(found[4], 1 / (factors[4] + 0.4))
    torch.testing.assert_close(factors, before, rtol=0, atol=0)


def test_retry_with_more_damping_then_in_float64_then_none():
    torch.manual_seed(2)
    good = positive(3, 3, dtype=torch.float32)
    # Positive definite with ten times the damping only.
    slightly = torch.diag(torch.tensor([1.0, 1.0, -0.05]))
    # Singular in float32 whatever is added, but not in float64.
    flat = torch.full((3, 3), 1e8)
    hopeless = torch.diag(torch.tensor([1.0, 1.0, -50.0]))
    endless = torch.full((3, 3), float("nan"))
    small = torch.tensor(0.01)
    found = invert([good, slightly, flat, hopeless, endless, good], [small] * 6)
    torch.testing.assert_close(found[0], damped(good, small).inverse())
    assert torch.equal(found[0], found[5])
    assert torch.equal(found[0], invert([good], [small])[0]), "failures spoil no neighbour"
    torch.testing.assert_close(found[1], damped(slightly, 0.1).inverse())
    torch.testing.assert_close(found[2], damped(flat.double(), 0.1).inverse().float())
    assert found[3] is found[4] is None
    diagonal = torch.tensor([1.0, float("inf"), float("nan")])
    assert invert([diagonal], [small]) == [None]


def test_the_split_of_damping():
    a, g = 4 * torch.eye(3), torch.eye(2)
    assert split_damping(a, g, 0.09, "plain") == (0.09, 0.09)
    stack = torch.stack([4 * torch.eye(3), torch.eye(3)])
    of_a, of_g = split_damping(stack, torch.eye(2).expand(2, 2, 2), torch.tensor(0.09))
    torch.testing.assert_close(of_a, torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(of_g, torch.tensor([0.15, 0.3]))
    of_a, _ = split_damping(torch.full((3,), 4.0), g, 0.09)  # the diagonal of an embedding
    assert float(of_a) == pytest.approx(0.6)
    for nothing in (torch.zeros(3, 3), torch.full((3, 3), float("nan"))):
        assert [float(value) for value in split_damping(nothing, g, 0.09)] == pytest.approx(
            [0.3, 0.3]
        )


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 3),
        nn.Linear(4, 3, bias=False),
        nn.Conv2d(4, 6, 3),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Conv1d(4, 4, 3, groups=4, bias=False),
        nn.Embedding(5, 3),
    ],
    ids=str,
)
def test_gradients_as_matrices_and_back(module):
    torch.manual_seed(6)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.grad.clone() for parameter in module.parameters()]
    matrix = gradient_matrix(module)
    rows = before[0].t() if isinstance(module, nn.Embedding) else before[0].flatten(1)
    torch.testing.assert_close(matrix.flatten(0, -2)[:, : rows.shape[1]], rows)  # as A has them
    write_gradient(module, 2 * matrix)
    for parameter, old in zip(module.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * old)
    # With factors of one, preconditioning changes nothing; and the shapes fit those of factors.
    a, g = (
        torch.ones(s) if len(s) == 1 else torch.eye(s[-1]).expand(s) for s in factor_shapes(module)
    )
    torch.testing.assert_close(by_inverses(matrix, a, g), matrix)
    torch.testing.assert_close(by_eigenvectors(matrix, *decompose([a, g]), 1.0), matrix / 2)


def test_gradients_in_half_precision_are_preconditioned_in_float32():
    module = nn.Linear(4, 3).half()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    matrix = gradient_matrix(module)
    assert matrix.dtype == torch.float32
    write_gradient(module, matrix / 4)
    assert module.weight.grad.dtype == torch.float16
    assert float(module.bias.grad[0]) == 0.25


def test_eigenvalues_are_not_negative_and_failures_are_none(monkeypatch):
    torch.manual_seed(7)
    rank_one = torch.ones(3, 3) * 1e6
    (pair,) = decompose([rank_one])
    assert (pair[0] >= 0).all()
    stack = positive(2, 4, 4)
    values, vectors = decompose([stack])[0]
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, stack)
    infinite = torch.full((3, 3), float("inf"))
    too_large = torch.full((3, 3), 2e38)  # the sum of a row is a value
    found = decompose([infinite, rank_one, too_large])
    assert found[0] is found[2] is None
    assert found[1] is not None

    real = torch.linalg.eigh

    def stuck(matrices):
        """As if one of several did not converge."""
        if matrices.dtype != torch.float64:
            raise torch.linalg.LinAlgError("linalg.eigh: failed to converge")
        return real(matrices)

    monkeypatch.setattr(inverses.torch.linalg, "eigh", stuck)
    (again,) = decompose([rank_one])
    torch.testing.assert_close(again[0].max(), pair[0].max())


def test_the_clip_is_that_of_the_published_formula():
    v, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]])
    w, h = torch.ones(2, 2), torch.full((2, 2), 0.25)
    # lr^2 (v.g + w.h) = 0.01 * 12
    found = clip_factor([v, w], [g, h], lr=0.1, kl_clip=0.001)
    assert float(found) == pytest.approx(math.sqrt(0.001 / 0.12))
    assert float(clip_factor([v, w], [g, h], lr=0.1, kl_clip=1.0)) == 1
    assert float(clip_factor([-v, -w], [g, h], lr=0.1, kl_clip=0.001)) == float(found)
    assert float(clip_factor([0 * v], [g], lr=0.1, kl_clip=0.001)) == 1
    assert float(clip_factor([v], [g], lr=0.0, kl_clip=0.001)) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda one: split_damping(one, one, 0.09, "half"), "expected one of pi, plain"),
        (lambda one: clip_factor([one], [one], lr=0.1, kl_clip=0), "kl_clip 0"),
        (lambda one: clip_factor([], [], lr=0.1, kl_clip=0.001), "no gradients"),
        (
            lambda one: gradient_matrix(nn.Linear(4, 3)),
            r"weight of Linear.*leave the layer out of this step",
        ),
        (lambda one: pack([one], torch.empty(4)), "expected one axis of 3 elements"),
        (lambda one: unpack(torch.empty(1, 3), [one]), "expected one axis of 3 elements"),
        (lambda one: packed_size((3, 4)), "expected d, d x d, or n x d x d"),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call(torch.eye(2))


# --- packed factors; that kernels pack the same says packed_factors of tests/gpu/factor_bodies.py

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
        torch.testing.assert_close(back, factors, rtol=0, atol=0)
    for dim in (4, 300):
        wide = symmetric(dim + 2, dim + 2)
        flat = torch.empty(packed_size((dim, dim)))
        pack([wide[:dim, :dim]], flat)
        back = torch.zeros(dim + 2, dim + 2)
        unpack(flat, [back[1:-1, 1:-1]])
        assert torch.equal(back[1:-1, 1:-1], wide[:dim, :dim])
        assert float(back[0].abs().max()) == float(back[:, -1].abs().max()) == 0


def test_a_gpu_that_is_not_there_packs_nothing():
    for work in ("pack", "unpack", "average"):
        queue = getattr(_core, f"{work}_factors_on_gpu")
        with pytest.raises((ValueError, aiacc.EngineError)):
            queue([], float64=False, device=1000, stream=0)
