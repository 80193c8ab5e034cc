"""A model, its data by rank, and K-FAC as one process would compute it with the data of all."""

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.distribution import distribute
from aiacc.kfac.factors import average, gradient_factor, input_factor
from aiacc.kfac.inverses import decompose, invert, split_damping
from aiacc.kfac.precondition import (
    by_eigenvectors,
    by_inverses,
    clip_factor,
    gradient_matrix,
    write_gradient,
)
from aiacc.kfac.rows import why_not
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import Affine
from aiacc.torch.kfac.layers import factored
from tests.support.learning.training import check_same_everywhere, flat

LR, DAMPING, DECAY, CLIP = 0.1, 0.03, 0.8, 1e-3
FACTOR_EVERY, INVERSE_EVERY = 2, 4
STEPS = 6
#: By which some factors have owners and others none.
COSTS = StageCosts(Polynomial(1e-4, 0.0, 1e-6), Affine(2e-3, 1e-9), gathered=True)


def net():
    """Layers of all kinds, one of them with groups, one without bias, one used twice."""
    torch.manual_seed(0)
    return _Net().double()


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2, bias=False)
        self.hidden = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        found = self.grouped(self.conv(images).relu()).flatten(1)
        found = self.hidden(self.hidden(found).tanh()).tanh()
        return self.head(self.norm(found))


def token_net():
    """An embedding, of whose entries some are in no batch, and a linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(18, 5)).double()


def loss_of(model, rank, step):
    """Of a rank's batch."""
    return loss_of_all(model, [rank], step)


def loss_of_all(model, ranks, step):
    """Of the batches of several ranks as one."""
    images, labels = [], []
    for rank in ranks:
        generator = torch.Generator().manual_seed(100 * step + rank)
        images.append(torch.randn(8, 1, 6, 6, generator=generator, dtype=torch.float64))
        labels.append(torch.randint(0, 5, (8,), generator=generator))
    return nn.functional.cross_entropy(model(torch.cat(images)), torch.cat(labels))


def loss_of_tokens(model, rank, step):
    """Of a rank's batch, for `token_net`."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 9, (8, 3), generator=generator)
    labels = torch.randint(0, 5, (8,), generator=generator)
    return nn.functional.cross_entropy(model(tokens), labels)


def training(model, process_set=hvd.global_process_set, momentum=0.0, **options):
    """The distributed optimizer of a model, and its KFAC."""
    sgd = torch.optim.SGD(model.parameters(), LR, momentum=momentum)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), process_set=process_set)
    settings = {
        "damping": DAMPING,
        "decay": DECAY,
        "kl_clip": CLIP,
        "factor_every": FACTOR_EVERY,
        "inverse_every": INVERSE_EVERY,
        "costs": COSTS,
        **options,
    }
    return optimizer, hvd.KFAC(model, optimizer, process_set=process_set, **settings)


#: For `training`.
EVERY_STEP = {"factor_every": 1, "inverse_every": 1}


def take_steps(model, optimizer, kfac, loss, steps):
    """Train on this rank's batches of these numbers."""
    for step in steps:
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        kfac.step()
        optimizer.step()


def trained(process_set=hvd.global_process_set, *, model=None, loss=loss_of, **options):
    """Parameters of `net` or ``model`` after `STEPS` steps as one of the ranks, and its KFAC.

    They are the same on all ranks of the set to the last bit.
    """
    model = net() if model is None else model
    optimizer, kfac = training(model, process_set, 0.9, **options)
    take_steps(model, optimizer, kfac, loss, range(STEPS))
    kfac.detach()
    if process_set.included():
        check_same_everywhere(model, process_set)
    return flat(model), kfac


def expected(
    ranks, sources=None, loss=loss_of, *, model=None, solve="cholesky", damping=lambda _: DAMPING
):
    """Parameters that `ranks` together should have.

    ``sources`` has by layer the ranks of whose data factors are built, if not of all.
    """
    model = net() if model is None else model
    layers = {name: module for name, module in model.named_modules() if why_not(module) is None}
    sgd = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    means, inverses = {name: [None, None] for name in layers}, {}
    for step in range(STEPS):
        sgd.zero_grad()
        new = {}
        for rank in ranks:
            seen = _watched(layers, lambda rank=rank, step=step: loss(model, rank, step), ranks)
            for name, (inputs, gradients) in seen.items():
                if rank not in (sources or {}).get(name, ranks):
                    continue
                module, uses = layers[name], len(inputs)
                both = [
                    sum(input_factor(module, one) for one in inputs) / uses,
                    sum(gradient_factor(module, one) for one in gradients),
                ]
                new[name] = [x + y for x, y in zip(new.get(name, (0, 0)), both, strict=True)]
        if step % FACTOR_EVERY == 0:
            for name, both in new.items():
                number = len((sources or {}).get(name, ranks))
                means[name] = [
                    average(old, fresh / number, DECAY)
                    for old, fresh in zip(means[name], both, strict=True)
                ]
        if step % INVERSE_EVERY == 0:
            for name, (a, g) in means.items():
                if a is not None and g is not None:
                    if solve == "eigh":
                        inverses[name] = decompose([a, g])
                    else:
                        inverses[name] = invert([a, g], split_damping(a, g, damping(step)))
        before = {name: gradient_matrix(layers[name]) for name in layers}
        after = {
            name: _preconditioned(before[name], inverses.get(name), solve, damping(step))
            for name in layers
        }
        clip = clip_factor(list(after.values()), list(before.values()), LR, CLIP)
        for name, matrix in after.items():
            write_gradient(layers[name], matrix * clip)
        sgd.step()
    return flat(model)


def owners(ranks):
    """By layer of `net`, the ranks of whose samples `dp` builds factors."""
    layers, _ = factored(net(), [])
    plan = distribute("dp", [layer.described for layer in layers], ranks, COSTS)
    return {layer.name: layer.a.inverted_by for layer in plan.layers}


def _preconditioned(gradient, inverses, solve, damping):
    if inverses is None:
        return gradient
    if solve == "eigh":
        return by_eigenvectors(gradient, *inverses, damping)
    return by_inverses(gradient, *inverses)


def _watched(layers, loss, ranks):
    """Inputs and gradients of outputs of each layer in a pass; gradients of parameters add up."""
    seen = {}

    def watch(name):
        def hook(_, inputs, output):
            seen.setdefault(name, ([], []))[0].append(inputs[0].detach())
            output.register_hook(lambda gradient: seen[name][1].append(gradient * len(ranks)))

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in layers.items()]
    (loss() / len(ranks)).backward()
    for hook in hooks:
        hook.remove()
    return seen
