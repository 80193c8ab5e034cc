"""Fisher matrices of tiny networks in full, and what K-FAC's factors make of them."""

import math

import pytest
import torch
from torch import nn

from aiacc.kfac.fisher import sample_targets
from tests.unit.kfac.networks import dense_gradients, factors_of
from tests.unit.kfac.oracle import their_factors


def block(factors):
    """A (x) G as a matrix of the layer's parameters: the weight row by row, then the bias."""
    a, g = factors
    width = a.shape[0] - 1
    full = torch.kron(g, a)  # out x in, the bias last in each row
    order = torch.arange(full.shape[0]).view(g.shape[0], width + 1)
    order = torch.cat([order[:, :width].flatten(), order[:, width]])
    return full[order][:, order]


def test_one_example_has_an_exact_block():
    """Of one example a a^T (x) g g^T is no approximation, in any layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs, target = torch.randn(1, 3).double(), torch.tensor([1])
    loss = nn.CrossEntropyLoss()
    gradients = dense_gradients(model, inputs, lambda outputs, _: loss(outputs, target))
    fisher = gradients.T @ gradients
    found = factors_of(model, inputs, lambda o: loss(o, target).backward())
    torch.testing.assert_close(block(found["0"]), fisher[:16, :16])
    torch.testing.assert_close(block(found["2"]), fisher[16:, 16:])


def test_equal_inputs_have_the_exact_empirical_fisher_matrix():
    """Without correlation between inputs and gradients the factors multiply exactly."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4)).double()
    inputs = torch.randn(1, 3).double().expand(8, 3)
    targets = torch.randint(4, (8,))
    loss = nn.CrossEntropyLoss()
    gradients = dense_gradients(model, inputs, lambda outputs, n: loss(outputs, targets[n : n + 1]))
    found = factors_of(model, inputs, lambda o: loss(o, targets).backward())
    torch.testing.assert_close(block(found["0"]), gradients.T @ gradients / 8)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_deep_linear_networks_with_shared_weights(approx):
    """Eschenhagen et al., propositions 1 and 2: exact for these settings, with squared errors."""
    torch.manual_seed(2)
    layer = nn.Linear(3, 2, bias=False).double()
    inputs = torch.randn(5, 4, 3).double()
    noise = torch.randn(200, 5, 4 if approx == "expand" else 1, 2).double()
    # expand: a loss for each token; reduce: one for the mean over tokens.
    terms = noise.shape[1] * noise.shape[2]

    def loss(outputs, drawn):
        if approx == "reduce":
            outputs = outputs.mean(1, keepdim=True)
        # With the gradient's expectation that of the Hessian of half the squared error.
        return (outputs * drawn).sum() / terms

    a_and_g = [
        factors_of(
            nn.Sequential(layer), inputs, lambda o, n=n: loss(o, n).backward(), approx,
            loss_terms=terms,
        )["0"]
        for n in noise
    ]  # fmt: skip
    a = a_and_g[0][0]
    g = torch.stack([g for _, g in a_and_g]).mean(0)
    rows = inputs.flatten(0, 1) if approx == "expand" else inputs.mean(1)
    exact = torch.kron(torch.eye(2).double(), rows.T @ rows / len(rows))
    # 200 draws of 5 or 20 terms: the mean of g g^T is the identity up to the noise of them.
    spread = 5 / math.sqrt(200 * terms)
    torch.testing.assert_close(torch.kron(g, a), exact, rtol=0, atol=spread * float(exact.max()))
    torch.testing.assert_close(g, torch.eye(2).double(), rtol=0, atol=spread)


def test_sampled_targets_of_a_cross_entropy_estimate_the_true_fisher_matrix():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 3)).double()
    inputs = torch.randn(1, 2).double().expand(40_000, 2)
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(4)
    found = factors_of(
        model, inputs, lambda o: loss(o, sample_targets(o, loss, generator)).backward()
    )
    # The Hessian of a cross entropy by the logits, and the inputs of all examples alike.
    p = model(inputs[:1])[0].detach().softmax(0)
    row = torch.cat([inputs[0], torch.ones(1).double()])
    exact = block((row.outer(row), p.diag() - p.outer(p)))
    torch.testing.assert_close(block(found["0"]), exact, rtol=0, atol=0.02 * float(exact.max()))


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
