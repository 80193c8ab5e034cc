"""Reductions, numbered as in Horovod and in the core, and what all front-ends accept for them."""

from __future__ import annotations

import math
import warnings

from aiacc import arguments
from aiacc.exceptions import CollectiveError

#: Sum over the ranks, divided by their number; integers are truncated toward zero. Their sum wraps
#: around in their dtype before it is divided, as additions of torch and NumPy do: the average of
#: 255 and 255 is 127 in uint8.
Average = 0
Sum = 1
#: Adaptive sum of each tensor, which adds what is orthogonal and averages what is parallel (Maleki
#: et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, section 3). For
#: floating-point tensors and a power of two ranks.
Adasum = 2
Min = 3
Max = 4
Product = 5

#: Other reductions than these are errors of another class, see `check_scatter_op`.
SCATTER_OP = arguments.RULES["op"]._replace(expected="Average or Sum", fits=lambda op: True)

_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


def resolve_op(average: bool | None, op: int | None) -> int:
    """The reduction that the arguments ``average`` (deprecated) and ``op`` mean together.

    Raises:
        TypeError: ``average`` is no bool, or ``op`` no number.
        ValueError: Both are given, or ``op`` is none that this version offers.
    """
    if average is not None:
        arguments.check({"average": average})
        if op is not None:
            raise ValueError(
                f"average={average!r} and op={name_of_op(op)} (expected at most one); "
                "'average' is deprecated, give 'op' alone"
            )
        warnings.warn(
            "the argument 'average' is deprecated; use op=Average or op=Sum",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    return check_op(op)


def check_op(op: int) -> int:
    """``op`` itself.

    Raises:
        TypeError: It is no number.
        ValueError: It is none that this version offers.
    """
    if type(op) is not int or not 0 <= op < len(_NAMES):
        arguments.check({"op": op})
    return op


def check_scatter_op(op: int) -> int:
    """``op`` itself, for a reducescatter.

    Raises:
        TypeError: It is no number.
        CollectiveError: It is neither Average nor Sum. (Horovod raises the same class.)
    """
    arguments.check({"op": op}, op=SCATTER_OP)
    if op not in (Average, Sum):
        raise CollectiveError(f"reducescatter with op={name_of_op(op)} (expected Average or Sum)")
    return op


def check_gradient_op(op: int, what: str) -> None:
    """Raise NotImplementedError unless the gradient of an all-reduce is reduced as its input is.

    That of a minimum, of a product or of an adaptive sum depends on the inputs of all ranks.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"{what} with op={name_of_op(op)} has no gradient (expected op=Average or Sum); detach "
            "its input, or reduce what allgather gives"
        )


def name_of_op(op: int) -> str:
    """``"Average"``, ``"Sum"``, ...; another value as it is."""
    return _NAMES[op] if arguments.is_whole(op) and 0 <= op < len(_NAMES) else repr(op)


def gradient_factors(op: int, gradient_predivide_factor: float) -> tuple[float, float]:
    """Prescale and postscale factor of the all-reduce of gradients. Pure.

    Raises:
        ValueError: A factor that nothing can be divided by; or divided before the sum, but not an
            average.
    """
    factor = gradient_predivide_factor
    is_number = arguments.RULES["prescale_factor"].is_kind(factor)
    if not (is_number and 0 < abs(float(factor)) < math.inf):
        raise ValueError(
            f"gradient_predivide_factor={factor!r} (expected a finite number that is "
            "not 0); leave it out to divide after the sum"
        )
    if gradient_predivide_factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError(
            f"gradient_predivide_factor={gradient_predivide_factor} with op={name_of_op(op)} "
            "(expected op=Average); leave out one of them"
        )
    return 1.0 / gradient_predivide_factor, gradient_predivide_factor
