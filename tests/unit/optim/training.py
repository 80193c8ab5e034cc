"""A few steps of an optimizer, and what they should come to, in float64."""

import numpy as np
import torch

SHAPES = [(7, 5), (16,), (3, 2, 3, 3), (1, 1), (4, 4)]
STEPS = 5


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    values[-1].zero_()  # whose norm is 0
    return [torch.nn.Parameter(value.to(dtype)) for value in values]


def gradients(dtype=torch.float32, shapes=SHAPES, steps=STEPS):
    generator = torch.Generator().manual_seed(2)
    every = [
        [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for _ in range(steps)
    ]
    every[0][3].zero_()
    every[2][2].zero_()
    return [[grad.to(dtype) for grad in grads] for grads in every]


def train(optimizer_of, dtype=torch.float32, shapes=SHAPES, steps=STEPS, sign=1):
    """Parameters after some steps of what ``optimizer_of`` makes of them."""
    params = parameters(dtype, shapes)
    optimizer = optimizer_of(params)
    for grads in gradients(dtype, shapes, steps):
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = sign * grad
        optimizer.step()
        for parameter, grad in zip(params, grads, strict=True):
            assert torch.equal(parameter.grad, sign * grad)  # left as it was
    return [parameter.detach() for parameter in params]


def reference(update, shapes=SHAPES, steps=STEPS):
    """The same in NumPy: ``update(w, g, state, step)`` gives the new w of a tensor."""
    params = [parameter.detach().numpy() for parameter in parameters(torch.float64, shapes)]
    states = [{} for _ in params]
    for step, grads in enumerate(gradients(torch.float64, shapes, steps), start=1):
        params = [
            update(w, g.numpy(), state, step)
            for w, g, state in zip(params, grads, states, strict=True)
        ]
    return [torch.from_numpy(np.array(w)) for w in params]


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)
