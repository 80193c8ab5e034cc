"""What codecs and error feedback should come to: plain NumPy, on the arrays of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aiacc.compression import feedback as kinds
from aiacc.compression.codecs import Sparse, parse
from aiacc.compression.feedback import Array
from aiacc.compression.policy import Policy

#: Half the distance of two neighbours in a block, in parts of its largest number.
_HALF_STEPS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "fp8": 0.5 / 14}


def largest(count: int) -> Callable[[Array], Array]:
    """A codec that keeps so many elements, the largest."""

    def code(values: Array) -> Array:
        decoded = np.zeros_like(values)
        places = np.argsort(-np.abs(values).ravel(), kind="stable")[:count]
        decoded.flat[places] = values.flat[places]
        return decoded

    return code


def check_sum(name: str, result: Array, inputs: Sequence[Array], divide_by: int = 1) -> None:
    """Assert that a coded all-reduce is as close as theory says, and that it was coded.

    Of the largest elements it is exact. In blocks every rank's code, and that of the sum, may be
    half a step away; in 16 bits every element of a rank, and the sum.
    """
    exact = sum(inputs[1:], inputs[0])
    if name.startswith(("mstopk", "topk")):
        code = largest(parse(name).kept(exact.size))
        expected = sum(
            map(code, inputs), np.zeros_like(exact)
        )  # in the order of ranks, as the core
        assert np.array_equal(result, expected / np.float32(divide_by))
        return
    half = 2.0**-9
    if name != "bf16":
        half = _HALF_STEPS[name.partition(":")[0]] * (1 + 2**-16)  # scales are rounded up
    error = half * sum(float(np.abs(one).max()) for one in inputs)
    error += half * (float(np.abs(exact).max()) + error)
    off = np.abs(result - exact / divide_by).max()
    assert 0 < off <= error * (1 + 1e-5) / divide_by, name


class Reference:
    """Sums over all ranks of one gradient, with a sparse codec and feedback, as papers say."""

    def __init__(self, policy: Policy, shape: tuple[int, ...], ranks: int, *, coded: bool) -> None:
        """Start with nothing kept; not ``coded``: the ranks share memory, where nothing is."""
        self._policy, self._coded, self._step = policy, coded, 0
        zeros: Any = np.zeros(shape, np.float32)
        if isinstance(policy.keeps, kinds.Momentum):
            zeros = zeros, zeros
        self._states = [zeros] * ranks

    def step(self, gradients: Sequence[Array]) -> Array:
        """What all ranks get."""
        codec, keeps = self._policy.codec_at(self._step), self._policy.keeps
        self._step += 1
        code: Callable[[Array], Array] = np.copy
        if self._coded and isinstance(codec, Sparse):
            code = largest(codec.kept(gradients[0].size))
        elif isinstance(keeps, kinds.Momentum):
            keeps = replace(keeps, masking=False)  # what travels dense begins nothing anew
        total = np.zeros_like(gradients[0])
        for rank, gradient in enumerate(gradients):
            state = self._states[rank]
            if isinstance(keeps, kinds.Momentum):
                sent, state = kinds.momentum(gradient, state, code, keeps)
            elif isinstance(keeps, kinds.EF21):
                sent, state = kinds.ef21(gradient, state, code)
            elif isinstance(keeps, kinds.Residual):
                sent, state = kinds.residual(gradient, state, code, keeps)
            else:
                sent = code(gradient)
            total, self._states[rank] = total + sent, state
        return total
