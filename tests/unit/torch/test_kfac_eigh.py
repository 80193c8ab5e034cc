"""KFAC by eigenvectors in one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.measure import inversion_table
from aiacc.torch.kfac.solvers import EIGH, SOLVERS

SHAPES = [(4, 4), (1, 1), (3, 5, 5), (6,)]


def _factor(shape):
    return Factor("x", shape, torch.float64, torch.device("cpu"))


def _positive(shape):
    if len(shape) == 1:
        return torch.rand(shape, dtype=torch.float64)
    rows = torch.randn(*shape, dtype=torch.float64)
    return rows @ rows.mT


def _trained(model, inputs, solve=EIGH, **options):
    """K-FAC of a model that has had one backward pass of ``inputs``."""
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    defaults = {"factor_every": 1, "inverse_every": 1, "damping": 0.1, "kl_clip": None}
    kfac = hvd.KFAC(model, sgd, solve=solve, **{**defaults, **options})
    model(inputs).pow(2).sum().backward()
    return kfac


def _solved(a, g, gradient, damping):
    """By a dense matrix."""
    a = a.diag() if a.dim() == 1 else a
    dense = torch.kron(g, a)
    dense = dense + damping * torch.eye(len(dense), dtype=dense.dtype)
    return torch.linalg.solve(dense, gradient.flatten()).view(gradient.shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.Linear(3, 4), torch.randn(6, 3).double()),
        lambda: (nn.Conv2d(2, 4, 3, groups=2), torch.randn(3, 2, 5, 5).double()),
        lambda: (nn.Embedding(7, 3), torch.tensor([0, 2, 2, 5])),
    ],
    ids=["linear", "grouped", "embedding"],
)
def test_the_damping_of_each_step_is_added_to_the_product(make):
    torch.manual_seed(0)
    module, inputs = make()
    model = nn.Sequential(module).double()
    kfac = _trained(model, inputs, inverse_every=10, damping=lambda step: 0.1 * (1 + step))
    layer = kfac._layers[0]
    for step in range(3):
        if step:  # the same factors and gradients
            model.zero_grad()
            model(inputs).pow(2).sum().backward()
        before = layer.gradient()
        kfac.step()
        after = layer.gradient()
        for a, g, one, other in zip(
            *(
                [matrix] if layer.weight.dim() == 2 else matrix
                for matrix in (layer.a.mean, layer.g.mean, before, after)
            ),
            strict=True,
        ):
            torch.testing.assert_close(other, _solved(a, g, one, 0.1 * (1 + step)))
    assert kfac.report().inverse_steps == 1


def test_a_decomposition_that_fails_leaves_the_last_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4))
    kfac = _trained(model, torch.randn(6, 3))
    kfac.step()
    layer = kfac._layers[0]
    before = layer.a.inverse
    layer.a.mean.fill_(float("inf"))
    model(torch.randn(6, 3)).sum().backward()
    kfac.step()
    assert layer.a.inverse is before
    assert kfac.report().failures == 1
    assert layer.gradient().isfinite().all()


def test_without_any_factor_gradients_are_divided_by_one_and_the_damping():
    torch.manual_seed(0)
    inputs = torch.full((2, 3), float("nan"))
    model = nn.Sequential(nn.Linear(3, 4))
    kfac = _trained(model, inputs, damping=0.5)
    layer = kfac._layers[0]
    gradient = torch.randn(4, 4)
    layer.put_gradient(gradient)
    kfac.step()
    assert kfac.report().dropped == 2
    torch.testing.assert_close(layer.gradient(), gradient / 1.5)


def test_a_state_is_of_means_and_loads_whatever_solves():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(3, 4)).double(), torch.randn(6, 3).double()
    kfac = _trained(model, inputs, "cholesky")
    kfac.step()
    state = copy.deepcopy(kfac.state_dict())
    kfac.detach()
    model.zero_grad()
    other = _trained(model, inputs, factor_every=10, inverse_every=10)
    other.load_state_dict(state)
    layer = other._layers[0]
    before = layer.gradient()
    other.step()
    a, g = (state["factors"][name] for name in ("0 A", "0 G"))
    torch.testing.assert_close(layer.gradient(), _solved(a, g, before, 0.1))
    assert other.state_dict()["factors"].keys() == state["factors"].keys()


@pytest.mark.parametrize("solve", SOLVERS)
def test_what_travels_comes_back_as_it_was_and_has_the_size_that_was_said(solve):
    torch.manual_seed(0)
    solver = SOLVERS[solve]
    factors = [_factor(shape) for shape in SHAPES]
    means = [_positive(shape) for shape in SHAPES]
    computed = solver.compute(means, [torch.tensor(0.1).double().expand(s[:-2]) for s in SHAPES])
    size = sum(map(solver.size, factors))
    flat = torch.empty(size, dtype=torch.float64)
    solver.pack(computed, flat)
    back = solver.unpack(flat, factors)
    assert [one.shape for one in back] == [one.shape for one in computed]
    flat.zero_()  # which the results share nothing with
    for one, other, factor in zip(back, computed, factors, strict=True):
        torch.testing.assert_close(one, other)
        assert one.is_contiguous()
        assert solver.identity(factor).shape == one.shape
    assert size == (20 + 2 + 90 + 6 if solve == EIGH else 10 + 1 + 45 + 6)


def test_costs_are_measured_of_what_is_computed():
    class Noted:
        def __init__(self):
            self.dims = []

        def compute(self, means, dampings):
            assert len(means) == len(dampings) == 1
            self.dims.append(len(means[0]))

    solver = Noted()
    table = inversion_table([3, 8], torch.empty(0), solver)
    assert [dim for dim, _ in table.points] == sorted(set(solver.dims)) == [3, 8]
