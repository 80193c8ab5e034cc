"""What becomes of the part of a gradient that a codec loses; NumPy references. Pure.

Gradients are float32 and already divided by the loss scale, so that what is kept over steps does
not depend on the scale. Where one has a NaN or an infinity, nothing is compressed and no state
changes: the gradient travels as it is, and the loss scaler sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiacc.compression import spelling

Array: TypeAlias = NDArray[np.float32]
#: What the other ranks decode from what a codec makes of an array, in an array of the same shape.
Code: TypeAlias = Callable[[Array], Array]


def _check_number(name: str, value: object, kind: str, example: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} {value!r} of {kind} (expected a number, such as {example})")


@dataclass(frozen=True)
class NoFeedback:
    """``none``: what a codec loses of a gradient is lost."""

    name: ClassVar[str] = "none"

    def __str__(self) -> str:
        return _spell(self)


@dataclass(frozen=True)
class Residual:
    """``residual``: what a codec loses of a gradient is added to the next one, times ``beta``."""

    name: ClassVar[str] = "residual"
    beta: float = 1.0

    def __post_init__(self) -> None:
        spelling.make_plain(self)
        _check_number("beta", self.beta, self.name, "1.0")
        if not 0 < self.beta <= 1:
            raise ValueError(
                f"beta {self.beta} of residual (expected more than 0 and at most 1; to forget what "
                "is lost use none)"
            )

    def __str__(self) -> str:
        return _spell(self)


@dataclass(frozen=True)
class Momentum:
    """``momentum``: momentum is accumulated on each rank before it is compressed.

    Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), sections 3.2 and 3.3. The
    optimizer itself must then have no momentum.
    """

    name: ClassVar[str] = "momentum"
    momentum: float = 0.9
    #: Whether the momentum of elements that were sent begins anew.
    masking: bool = True
    #: Whether it is Nesterov's, as the optimizer would have it: a step ahead.
    nesterov: bool = False

    def __post_init__(self) -> None:
        spelling.make_plain(self)
        _check_number("momentum", self.momentum, self.name, "0.9")
        for name in ("masking", "nesterov"):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name} {value!r} of momentum (expected True or False)")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum {self.momentum} (expected 0 or more and less than 1: the optimizer's)"
            )

    def __str__(self) -> str:
        return _spell(self)


@dataclass(frozen=True)
class EF21:
    """``ef21``: ranks send how their gradient differs from what the other ranks know of it.

    Richtarik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021 (arXiv 2106.05203).
    """

    name: ClassVar[str] = "ef21"

    def __str__(self) -> str:
        return _spell(self)


Feedback: TypeAlias = NoFeedback | Residual | Momentum | EF21
#: All kinds with their defaults, by name.
KNOWN: dict[str, Feedback] = {
    one.name: one for one in (NoFeedback(), Residual(), Momentum(), EF21())
}


def parse(text: str) -> Feedback:
    """What ``none``, ``residual:beta=0.9``, ``momentum:masking=false`` or ``ef21`` name.

    Raises ValueError, which names what is wrong.
    """
    return spelling.parse(text, KNOWN, "feedback")


def residual(
    gradient: Array, left: Array, code: Code, feedback: Residual = Residual()
) -> tuple[Array, Array]:
    """One step of one rank.

    Args:
        gradient: float32, any shape.
        left: What earlier steps have left over, of the same shape; zeros at first.
        code: The codec.
        feedback: Its factor.

    Returns:
        What the rank contributes to the sum, and what is left over now. Their sum is that of
        ``gradient`` and beta times ``left``.
    """
    _check_shapes(gradient, left)
    if not np.isfinite(gradient).all():
        return gradient, left
    whole = gradient + np.float32(feedback.beta) * left
    decoded = code(whole)
    return decoded, whole - decoded


def momentum(
    gradient: Array,
    state: tuple[Array, Array],
    code: Code,
    feedback: Momentum = Momentum(),
) -> tuple[Array, tuple[Array, Array]]:
    """One step of one rank.

    Args:
        gradient: float32, any shape.
        state: Momentum, and what has accumulated of it, of the same shape; zeros at first.
        code: The codec. What it decodes to 0 counts as not sent.
        feedback: Factor, masking and which kind.

    Returns:
        What the rank contributes to the sum, and the state then. The contribution and what has
        accumulated now are in sum what had accumulated before and the new momentum, with
        ``nesterov`` the gradient and the factor times that.
    """
    velocity, accumulated = state
    _check_shapes(gradient, velocity, accumulated)
    if not np.isfinite(gradient).all():
        return gradient, state
    factor = np.float32(feedback.momentum)
    velocity = factor * velocity + gradient
    accumulated = accumulated + (factor * velocity + gradient if feedback.nesterov else velocity)
    decoded = code(accumulated)
    if feedback.masking:
        velocity = np.where(decoded != 0, np.float32(0), velocity)
    return decoded, (velocity, accumulated - decoded)


def ef21(gradient: Array, known: Array, code: Code) -> tuple[Array, Array]:
    """One step of one rank.

    Args:
        gradient: float32, any shape.
        known: What the other ranks know of this rank's gradient, of the same shape; zeros at first.
        code: The codec; it is ``gradient`` - ``known`` that travels.

    Returns:
        What the rank contributes to the sum, and what is known now: the same array.
    """
    _check_shapes(gradient, known)
    if not np.isfinite(gradient).all():
        return gradient, known
    known = known + code(gradient - known)
    return known, known


def _spell(feedback: Feedback) -> str:
    return spelling.spell(feedback, KNOWN)


def _check_shapes(gradient: Array, *state: Array) -> None:
    wrong: list[Any] = [array.shape for array in state if array.shape != gradient.shape]
    if wrong:
        raise ValueError(
            f"state of shape {wrong[0]} for a gradient of shape {gradient.shape} (expected the "
            "same; start with zeros)"
        )
