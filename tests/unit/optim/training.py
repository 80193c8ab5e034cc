"""A few steps of an optimizer, and what they should come to, in float64."""

import numpy as np
import torch

SHAPES = [(7, 5), (16,), (3, 2, 3, 3), (1, 1), (4, 4)]
STEPS = 5
#: Tensor by tensor, with operations on lists, and by the core.
WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def _random(generator):
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def parameters(dtype=torch.float32):
    values = _random(torch.Generator().manual_seed(1))
    values[-1].zero_()  # whose norm is 0
    return [torch.nn.Parameter(value.to(dtype)) for value in values]


def gradients(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    every = [_random(generator) for _ in range(STEPS)]
    every[0][3].zero_()
    every[2][2].zero_()
    return [[grad.to(dtype) for grad in grads] for grads in every]


def train(optimizer_of, dtype=torch.float32, sign=1):
    """Parameters after some steps of what ``optimizer_of`` makes of them."""
    params = parameters(dtype)
    optimizer = optimizer_of(params)
    for grads in gradients(dtype):
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = sign * grad
        optimizer.step()
        for parameter, grad in zip(params, grads, strict=True):
            assert torch.equal(parameter.grad, sign * grad)  # left as it was
    return [parameter.detach() for parameter in params]


def reference(update):
    """The same in NumPy: ``update(w, g, state, step)`` gives the new w of a tensor."""
    params = [parameter.detach().numpy() for parameter in parameters(torch.float64)]
    states = [{} for _ in params]
    for step, grads in enumerate(gradients(torch.float64), start=1):
        params = [
            update(w, g.numpy(), state, step)
            for w, g, state in zip(params, grads, states, strict=True)
        ]
    return [torch.from_numpy(np.array(w)) for w in params]


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)
