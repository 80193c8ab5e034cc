"""Tests whose body is what each rank of a job does.

    @on_ranks(2, 3)
    def test_a_sum_is_that_of_all_ranks():
        assert hvd.allreduce(torch.tensor(1), op=hvd.Sum) == hvd.size()

The body runs between `init` and `shutdown`, on one thread of torch, with the values of
`pytest.mark.parametrize` and of fixtures, which have to be picklable; parts of a test share a job
by ``each``, which costs less. Other tests may give ``test_a_sum_is_that_of_all_ranks.body``, and a
dictionary of such values, to `run_ranks`. What returns something to that is a function `in_job`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from aiacc import basics
from tests.support import meeting
from tests.support.ranks import run_ranks

# Three ranks are no power of two and have ones that are neither first nor last; two are often the
# only ones with a path of their own, which other tests of two ranks take.
_TWO = pytest.param(2, marks=pytest.mark.nightly)
ONE_TO_THREE = [1, 3, _TWO]
TWO_AND_THREE = [3, _TWO]
#: Where MPI moves tensors.
OVER_MPI = {"launcher": "mpirun", "env": {"AIACC_ENGINE": "mpi"}}


def over(*engines: str) -> dict[str, dict[str, Any]]:
    """Ways in which these engines move tensors."""
    return {
        name: OVER_MPI if name == "mpi" else {"env": {"AIACC_ENGINE": name}} for name in engines
    }


def on_ranks(
    *sizes: Any,
    ways: Mapping[str, Mapping[str, Any]] | None = None,
    each: Mapping[str, Iterable[Any]] = MappingProxyType({}),
    starts: bool = True,
    run: Callable[..., Any] = run_ranks,
    **options: Any,
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run the test on ranks.

    Args:
        sizes: Numbers of ranks, once for each of which it runs.
        ways: More options of `run_ranks`, by names of theirs; it runs once with each, too.
        each: Values of arguments of the body, which runs with each of them, in one job; an error
            says with which. Who calls the body may give one value instead.
        starts: Whether `init` is called; else the body does it.
        run: `run_ranks`, or what stands for it.
        options: Those of `run_ranks`.
    """

    def decorate(body: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(size: int, way: str = "", **arguments: Any) -> None:
            chosen = {**options, **(ways[way] if ways else {})}
            run(size, test.body, arguments, **chosen)

        test.body = _Body(body, starts)  # type: ignore[attr-defined]
        test.each = each  # type: ignore[attr-defined]
        signature = inspect.signature(body)
        asked = [one for name, one in signature.parameters.items() if name not in each]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("size", "way")
        ]
        test.__signature__ = signature.replace(  # what pytest asks for
            parameters=[*asked, *added[: 2 if ways else 1]]
        )
        if ways:
            test = pytest.mark.parametrize("way", [*map(_marked, ways.items())])(test)
        return pytest.mark.parametrize("size", sizes)(test)

    return decorate


def in_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, for `run_ranks`, between `init` and `shutdown`, on one thread of torch."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        _take_one_thread()
        basics.init()
        result = function(*args)
        _end_together()
        return result

    return call


def join_as(hosts: str) -> None:
    """Become rank number AIACC_RANK of a job whose rank r is on host ``hosts[r]``."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    basics.init()


def until_it_fails(call: Callable[[], object]) -> None:
    """Call it again and again."""
    while True:
        call()


def _end_together() -> None:
    """Shut down where no rank is left with work that needs the others: one returns before it."""
    meeting.meet()
    basics.shutdown()


def _take_one_thread() -> None:
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _marked(way: tuple[str, Mapping[str, Any]]) -> Any:
    name, options = way
    needs_mpi = options.get("launcher") in ("mpirun", "openmpi")
    return pytest.param(name, marks=pytest.mark.mpi if needs_mpi else ())


class _Body:
    """The body of a test, which a rank finds by name."""

    def __init__(self, body: Callable[..., object], starts: bool) -> None:
        self.__module__, self._name = body.__module__, body.__name__
        self._starts = starts

    def __call__(self, arguments: Mapping[str, Any]) -> None:
        _take_one_thread()
        if self._starts:
            basics.init()
        self.run(arguments)
        _end_together()

    def run(self, arguments: Mapping[str, Any]) -> None:
        """What the test has written, alone."""
        test = getattr(importlib.import_module(self.__module__), self._name)
        each = {name: values for name, values in test.each.items() if name not in arguments}
        for values in itertools.product(*each.values()):
            chosen = dict(zip(each, values, strict=True))
            if self._starts and not basics.is_initialized():  # a part has shut it down
                basics.init()
            try:
                test.__wrapped__(**arguments, **chosen)
            except BaseException as error:
                getattr(error, "add_note", print)(f"in {self._name}, with {chosen}")
                raise
