"""Gradients that travel in the buckets of a plan from `aiacc.planning`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from aiacc.collectives.objects import maxima
from aiacc.planning.cost import counted
from aiacc.planning.plan import ALL_REDUCE, Plan, check_kind
from aiacc.process_sets import ProcessSet


class PlannedBuckets:
    """A plan as the gradients of one optimizer follow it.

    Args:
        plan: By the names that `names_of` gives.

    Raises:
        ValueError: It is no plan, or its schedule is not that of all-reduces.
    """

    def __init__(self, plan: Plan | str) -> None:
        """See the class."""
        if isinstance(plan, str):
            raise ValueError(
                f"plan={plan!r:.50} (expected a Plan: the front-end of TensorFlow makes none by "
                "itself); Plan.decode(Path(FILE).read_text()) reads the file of aiacc-plan"
            )
        if check_kind(plan).schedule != ALL_REDUCE:
            raise ValueError(
                f"plan with schedule {plan.schedule!r} (expected {ALL_REDUCE!r}, the only one for "
                "TensorFlow); plan with another planner"
            )
        self._plan = plan
        self._agreed = False
        self._told_of_broken = False
        self._told_of_left_out = False

    def agree(self, names: Sequence[str], process_set: ProcessSet) -> None:
        """Compare the plan with those of the other ranks, the first time that it is called.

        Collective: the first call, on every rank of ``process_set``.
        Blocks: in the first call until all have answered.

        Args:
            names: Of the optimizer's variables.
            process_set: Ranks that reduce gradients; others do not compare.

        Raises:
            ValueError: On every rank, if they have different plans, or one rank has not all the
                variables of the plan.
        """
        if self._agreed or process_set.included() is False:
            return
        problem = unknown_in(self._plan, names)
        digest = int(self._plan.digest[:14], 16)
        highest, minus_lowest, problems = maxima(
            [digest, -digest, int(bool(problem))], "plan.digest", process_set
        )
        if problem:
            raise ValueError(problem)
        if highest != -minus_lowest:
            raise ValueError(
                "plan: the ranks were given different ones (expected the same on every rank); load "
                "it from one file, or broadcast it (broadcast_object)"
            )
        if problems:
            raise ValueError(
                "plan has gradients that the optimizer of another rank has not (expected variables "
                "of the same names on every rank); make the same models in the same order, or name "
                "their layers"
            )
        self._agreed = True

    def groups(
        self, names: Sequence[str], present: Sequence[int], sparse: Collection[int]
    ) -> list[Sequence[int]]:
        """Positions of the gradients that form an operation each; tells once what it cannot follow.

        Args:
            names: Of the variables, one for each gradient.
            present: Positions of the gradients that are not None.
            sparse: Positions of those that travel as rows.
        """
        division = divided(self._plan, names, present, sparse)
        if division.broken and not self._told_of_broken:
            self._told_of_broken = True
            warnings.warn(
                f"plan: no dense gradient came for {division.broken[0]!r} (expected one for every "
                f"variable of a bucket): the others of its bucket are reduced one by one, as in "
                f"{len(division.broken)} of {len(self._plan.buckets)} buckets; plan without it",
                stacklevel=2,
            )
        if division.left_out and not self._told_of_left_out:
            self._told_of_left_out = True
            warnings.warn(
                f"plan leaves out {len(division.left_out)} of {len(names)} variables, "
                f"{division.left_out[0]!r} for one: their gradients are reduced one by one",
                stacklevel=2,
            )
        return division.groups


class Division(NamedTuple):
    """How a plan divides the gradients of a step."""

    #: Positions of gradients: whole buckets in the order of the plan, then what travels by itself.
    groups: list[Sequence[int]]
    #: Of each bucket that is not whole, a name that is the reason.
    broken: list[str]
    #: Names of gradients in no bucket.
    left_out: list[str]


def divided(
    plan: Plan, names: Sequence[str], present: Sequence[int], sparse: Collection[int]
) -> Division:
    """What of ``plan`` can be followed by the gradients that came, alike on every rank. Pure."""
    position_of = {names[i]: i for i in present if i not in sparse}
    groups: list[Sequence[int]] = []
    broken = []
    for bucket in plan.buckets:
        missing = next((name for name in bucket if name not in position_of), None)
        if missing is None:
            groups.append([position_of[name] for name in bucket])
        else:
            broken.append(missing)
    grouped = {i for group in groups for i in group}
    planned = {name for bucket in plan.buckets for name in bucket}
    return Division(
        [*groups, *([i] for i in present if i not in grouped)],
        broken,
        [names[i] for i in present if names[i] not in planned],
    )


def unknown_in(plan: Plan, names: Sequence[str]) -> str:
    """What is wrong if ``plan`` has others than ``names``; "" if it has not. Pure."""
    strange = sorted({name for bucket in plan.buckets for name in bucket} - set(names))
    if not strange:
        return ""
    return (
        f"plan has {counted(len(strange), 'gradient')} that the optimizer lacks, "
        f"{strange[0]!r} for one (expected names of variables, such as "
        f"{next(iter(names), None)!r}); plan for its model"
    )


def names_of(variables: Sequence[Any]) -> list[str]:
    """What plans and profiles call the gradients of these variables; each name comes once. Pure.

    It is the ``path`` of a variable of Keras 3, the ``name`` of another. Further variables of the
    same name are numbered: ``Variable:0``, ``Variable:0#2``.
    """
    numbers: Counter[str] = Counter()
    names = []
    for variable in variables:
        name = str(getattr(variable, "path", None) or variable.name)
        numbers[name] += 1
        names.append(name if numbers[name] == 1 else f"{name}#{numbers[name]}")
    return names
