"""A model, its optimizer and K-FAC in one process, and what dense matrices make of gradients."""

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.kfac.precondition import gradient_matrix
from tests.unit.kfac.networks import record

BATCH = 6


def layered():
    """Two layers whose factors have four different dimensions: 4 and 5, 6 and 3."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def training(model=None, **options):
    """The model, SGD and a K-FAC that computes everything in each step and clips nothing."""
    model = layered() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    defaults = {"factor_every": 1, "inverse_every": 1, "damping": 0.1, "kl_clip": None}
    return model, sgd, hvd.KFAC(model, sgd, **{**defaults, **options})


def inputs_of(seed):
    """A batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, 3, generator=generator, dtype=torch.float64)


def backward(model, seed=1, factor=1.0, examples=slice(None)):
    """A pass of (part of) a batch: inputs and gradients of outputs of each layer, by its name.

    The loss is the mean over the batch times ``factor``; gradients are those of each example's own
    loss, as factors have them.
    """
    inputs = inputs_of(seed)[examples]
    seen = record(model, inputs, lambda out: (out.pow(2).sum(1).mean() * factor).backward())
    return {name: (x, g * len(inputs) / factor) for name, (x, g) in seen.items()}


def factors_by_hand(seen):
    """A and G of a linear layer with bias, from what `backward` has seen of it."""
    inputs, gradients = seen
    rows = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
    return rows.T @ rows / len(rows), gradients.T @ gradients / len(rows)


def solved(a, g, gradient, damping, solve="cholesky", split="pi"):
    """What K-FAC makes of the gradient of a layer, with dense matrices."""
    if solve == "eigh":
        dense = torch.kron(g, a)
        dense = dense + damping * torch.eye(len(dense), dtype=dense.dtype)
        return torch.linalg.solve(dense, gradient.flatten()).view(gradient.shape)
    of_a = of_g = damping
    if split == "pi":
        pi = (a.diagonal().mean() / g.diagonal().mean()).sqrt()
        of_a, of_g = pi * damping**0.5, damping**0.5 / pi
    a = a + of_a * torch.eye(len(a), dtype=a.dtype)
    g = g + of_g * torch.eye(len(g), dtype=g.dtype)
    return torch.linalg.solve(g, torch.linalg.solve(a, gradient.T).T)


def gradients_of(model):
    """Of each linear layer, as the matrix that K-FAC works on."""
    return {
        name: gradient_matrix(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def copied(kfac):
    """Running means of the factors by name."""
    return {name: one.clone() for name, one in kfac.state_dict()["factors"].items()}
