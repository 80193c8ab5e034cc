"""What users may give, by the names of arguments: checked where it enters, in the same words.

An argument means the same wherever it has the same name, so one table says what it has to be, and
every front-end refuses the same with the same text. Who has another meaning for a name says so in
the call of `check`.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What an argument has to be.

    Attributes:
        expected: That, for people.
        is_kind: Whether a value is of the right type.
        fits: Whether one of that type is right.
        remedy: What to do instead, if that is not obvious.
    """

    expected: str
    is_kind: Callable[[Any], bool]
    fits: Callable[[Any], bool] = lambda value: True
    remedy: str = ""

    def refusal(self, name: str, value: object) -> str:
        """What an error says of ``value``."""
        remedy = self.remedy and f"; {self.remedy}"
        return f"{name}={value!r:.100} (expected {self.expected}){remedy}"


def check(given: Mapping[str, Any], **rules: Rule) -> None:
    """Check arguments whose names `RULES` has, or ``rules``, which go before.

    Args:
        given: Values by name: ``locals()`` at the beginning of a function.
        **rules: What is other than in the table.

    Raises:
        TypeError: A value of a wrong type.
        ValueError: Another wrong value.
    """
    for name, value in given.items():
        rule = rules.get(name) or RULES.get(name)
        if rule is None:
            continue
        if not rule.is_kind(value):
            raise TypeError(rule.refusal(name, value))
        if not rule.fits(value):
            raise ValueError(rule.refusal(name, value))


def explained(error: Exception, given: Mapping[str, Any]) -> Exception:
    """What to raise for ``error``, which came of arguments that were not checked, if it is of them.

    For what is called so often that it checks none before.
    """
    try:
        check(given)
    except (TypeError, ValueError) as known:
        return known
    return error


def is_whole(value: object) -> bool:
    """Whether it is an integer, of Python, NumPy or a framework, and no bool."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, AttributeError):  # of tensors, whatever they hold
        return False
    return not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python, NumPy or a framework, and no bool or text.

    Arrays and tensors of one element are, unless that is complex.
    """
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # of several, or symbolic
        return False
    return True


def is_listing(value: object) -> bool:
    """Whether it is an iterable, and neither text nor bytes, whose elements nobody means."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray)


def _is_encodable(text: str) -> bool:
    """Whether there are no halves of surrogate pairs in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_path(path: str | os.PathLike[str]) -> bool:
    """Whether the system takes it for one; a NUL would end it."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return bool(name) and b"\0" not in name


def is_flag(value: object) -> bool:
    """Whether it is True or False, of Python or NumPy, or 1 or 0."""
    try:
        return bool(value in (True, False))
    except (TypeError, ValueError, RuntimeError):  # of an array
        return False


def of(kind: Any, expected: str, remedy: str = "") -> Rule:
    """An instance of a class, or of one of several."""
    return Rule(expected, lambda value: isinstance(value, kind), remedy=remedy)


def having(attributes: Iterable[str], expected: str, remedy: str = "") -> Rule:
    """Anything with these attributes."""
    names = tuple(attributes)
    return Rule(expected, lambda value: all(hasattr(value, name) for name in names), remedy=remedy)


def whole(
    least: int, expected: str = "a whole number", remedy: str = "", most: int | None = None
) -> Rule:
    """An integer, ``least`` or more; with ``most`` that or less."""
    if most is not None:
        return Rule(
            f"{expected}, {least} to {most}", is_whole, lambda v: least <= v <= most, remedy
        )
    return Rule(f"{expected}, {least} or more", is_whole, lambda value: value >= least, remedy)


def number(least: float | None = None, remedy: str = "") -> Rule:
    """A number; with ``least`` that or more, and so no NaN."""
    if least is None:
        return Rule("a number", is_number, remedy=remedy)
    return Rule(f"a number >= {least:g}", is_number, lambda value: bool(value >= least), remedy)


def one_of(*names: str) -> Rule:
    """One of these texts."""
    known = f"one of {', '.join(names)}"
    return Rule(known, lambda value: isinstance(value, str), lambda value: value in names)


def or_none(rule: Rule) -> Rule:
    """What ``rule`` takes, or None."""
    return rule._replace(
        expected=f"{rule.expected}, or None",
        is_kind=lambda value: value is None or rule.is_kind(value),
        fits=lambda value: value is None or rule.fits(value),
    )


def several(members: Callable[[Any], bool], expected: str, remedy: str = "") -> Rule:
    """A list or tuple of what ``members`` says of each."""
    return Rule(
        expected,
        lambda value: isinstance(value, list | tuple) and all(map(members, value)),
        remedy=remedy,
    )


def _is_process_set(value: object) -> bool:
    return hasattr(value, "process_set_id")  # `process_sets` needs this module


#: What is torch's; this module imports no framework.
MODULE = having(("named_parameters", "modules"), "a torch.nn.Module")
OPTIMIZER = having(("param_groups", "state_dict"), "an optimizer of torch.optim")

TEXT = of(str, "a string")
FLAG = Rule("True or False", is_flag)
NUMBER = number()
FINITE = Rule("a finite number", is_number, lambda value: math.isfinite(float(value)))
#: What 64 bits hold.
LARGEST = (1 << 63) - 1
FUNCTION = Rule("a function", callable)
PATTERNS = Rule(
    'patterns of names, such as ("*.bias",)',
    lambda given: isinstance(given, Collection) and all(isinstance(one, str) for one in given),
)
_LEARNING = number(0.0)
_NAME = TEXT._replace(expected="a string that UTF-8 can encode", fits=_is_encodable)
#: As the core takes it.
_FACTOR = FINITE._replace(is_kind=lambda value: isinstance(value, bool) or is_number(value))
_MOST_RANKS = 1 << 31

#: What an argument has to be, by its name.
RULES: dict[str, Rule] = {
    # of operations
    "name": or_none(_NAME),
    "average": or_none(FLAG),
    "op": Rule(
        "Average, Sum, Adasum, Min, Max or Product",
        is_whole,
        lambda op: 0 <= op <= 5,
        "they are attributes of the front-end, as in op=hvd.Average",
    ),
    "prescale_factor": _FACTOR,
    "postscale_factor": _FACTOR,
    "process_set": Rule(
        "a ProcessSet",
        _is_process_set,
        remedy="make one with add_process_set, or leave it out for all ranks",
    ),
    "root_rank": Rule(
        "the number of a rank, 0 or more",
        is_whole,
        lambda rank: 0 <= operator.index(rank) < _MOST_RANKS,
    ),
    "tensors": Rule(
        "a list of tensors",
        lambda tensors: isinstance(tensors, Iterable) and not hasattr(tensors, "shape"),
        remedy="wrap it in a list",
    ),
    "handle": Rule(
        "the handle that an operation ending in _async returned",
        is_whole,
        lambda handle: abs(operator.index(handle)) <= LARGEST,
    ),
    "process_set_id": whole(0),
    "ignore_name_scope": FLAG,
    "device_dense": or_none(TEXT),
    "device_sparse": or_none(TEXT),
    "inplace": FLAG,
    # of the runtime
    "process_sets": or_none(
        Rule(
            'a list of ProcessSet, or "dynamic"',
            lambda sets: (
                isinstance(sets, str)
                or (isinstance(sets, Collection) and all(map(_is_process_set, sets)))
            ),
            lambda sets: not isinstance(sets, str) or sets.lower() == "dynamic",
        )
    ),
    "file_path": of((str, os.PathLike), "the path of a file")._replace(fits=_is_path),
    "mark_cycles": FLAG,
    # of optimizers that are distributed, and of tapes
    "backward_passes_per_step": whole(1),
    "sparse_as_dense": FLAG,
    "gradient_as_bucket_view": FLAG,
    "average_aggregated_gradients": FLAG,
    "scale_local_gradients": FLAG,
    "use_locking": FLAG,
    "num_groups": or_none(whole(0)),
    "divide": or_none(FLAG),
    "max_norm": NUMBER,
    "norm_type": Rule("a number, or inf", lambda value: is_number(value) or str(value) == "inf"),
    # of optimizers
    "lr": _LEARNING,
    "sgd_lr": _LEARNING,
    "dampening": _LEARNING,
    "momentum": _LEARNING,
    "weight_decay": _LEARNING,
    "trust_coefficient": _LEARNING,
    "eps": _LEARNING,
    "epsilon": _LEARNING,
    "share": Rule("a number from 0 to 1", is_number, lambda share: bool(0 <= share <= 1)),
    "max_grad_norm": or_none(Rule("a number > 0", is_number, lambda norm: bool(norm > 0))),
    "nesterov": FLAG,
    "larc": FLAG,
    "bias_correction": FLAG,
    "adapt_one_dimensional": FLAG,
    "maximize": FLAG,
    "differentiable": FLAG,
    "capturable": FLAG,
    "foreach": or_none(FLAG),
    "fused": or_none(FLAG),
    "betas": Rule(
        "two numbers, 0 <= beta < 1",
        lambda betas: isinstance(betas, list | tuple) and all(map(is_number, betas)),
        lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
    ),
    "trust_clamp": or_none(
        Rule(
            "(least, largest), 0 <= least <= largest",
            lambda clamp: isinstance(clamp, list | tuple) and all(map(is_number, clamp)),
            lambda clamp: len(clamp) == 2 and 0 <= clamp[0] <= clamp[1],
        )
    ),
    "exclude": or_none(
        PATTERNS._replace(
            expected=f"{PATTERNS.expected}, or a function of name and parameter",
            is_kind=lambda exclude: callable(exclude) or PATTERNS.is_kind(exclude),
        )
    ),
    # of data sets and samplers
    "requests": whole(1),
    "retries": whole(0),
    "transform": or_none(FUNCTION),
    "version": TEXT,
    "part": TEXT,
    "evict": one_of("never", "lru"),
    "sync": FLAG,
    "shuffle": FLAG,
    "drop_last": FLAG,
    "seed": Rule("a whole number", is_whole),
    "ahead": whole(0),
    "count": whole(0),
    "reshard_every": whole(0),
    "patience_s": number(0.0),
    "epoch": whole(0),
    "progress": or_none(FUNCTION),
    "start_method": or_none(one_of("fork", "spawn", "forkserver")),
    "sampler": Rule("an iterable of indices", is_listing),
    "indices": or_none(Rule("a list of indices", is_listing)),
    # of texts that become settings
    "text": TEXT,
}
