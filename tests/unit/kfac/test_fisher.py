"""Targets that are drawn from what a network predicts: for factors of the true Fisher matrix."""

import pytest
import torch
from torch import nn

from aiacc.kfac.fisher import sample_targets
from tests.unit.kfac.networks import factors_of
from tests.unit.kfac.oracle import their_factors


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss()], ids=str)
def test_sampled_targets_as_curvlinops_and_its_exact_factors(loss):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = torch.randn(20, 3).double()
    targets = torch.randint(3, (20,)) if isinstance(loss, nn.CrossEntropyLoss) else inputs
    _, exact = their_factors(model, inputs, targets, loss, kind="type-2")
    generator = torch.Generator().manual_seed(6)
    many = inputs.repeat(5000, 1)
    found = factors_of(
        model, many, lambda o: loss(o, sample_targets(o, loss, generator)).backward()
    )
    for name, (_, g) in found.items():
        expected = exact[name]
        torch.testing.assert_close(g, expected, rtol=0, atol=0.03 * float(expected.max()))


def test_a_binary_loss():
    outputs = torch.tensor([[-1.0], [0.5]]).double().repeat(50_000, 1).requires_grad_()
    loss = nn.BCEWithLogitsLoss()
    drawn = sample_targets(outputs, loss, torch.Generator().manual_seed(7))
    (gradients,) = torch.autograd.grad(loss(outputs, drawn) * len(outputs), outputs)
    p = outputs.detach().sigmoid()
    torch.testing.assert_close(
        (gradients**2).view(-1, 2).mean(0), (p * (1 - p))[:2, 0], rtol=0.02, atol=0
    )


def test_targets_have_the_form_that_the_loss_takes():
    outputs = torch.randn(2, 5, 3, 4, requires_grad=True)
    drawn = sample_targets(outputs, nn.CrossEntropyLoss())
    assert drawn.shape == (2, 3, 4)
    assert drawn.dtype == torch.long
    assert not drawn.requires_grad
    nn.CrossEntropyLoss()(outputs, drawn)
    drawn = sample_targets(outputs.half(), nn.MSELoss())
    assert (drawn.shape, drawn.dtype) == (outputs.shape, torch.float16)
    same = [
        sample_targets(outputs, nn.MSELoss(), torch.Generator().manual_seed(8)) for _ in range(2)
    ]
    assert torch.equal(*same)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (nn.L1Loss(), "draw them yourself"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "smoothing"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), "expected neither"),
        (nn.BCEWithLogitsLoss(), "a mean over 3 outputs"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3), reduction="sum"), "expected no weights"),
    ],
)
def test_losses_without_a_distribution(loss, text):
    with pytest.raises(TypeError, match=text):
        sample_targets(torch.randn(2, 3), loss)
