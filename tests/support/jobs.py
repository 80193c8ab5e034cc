"""Tests whose body is what each rank of a job does.

    @on_ranks(2, 3)
    def test_a_sum_is_that_of_all_ranks():
        assert hvd.allreduce(torch.tensor(1), op=hvd.Sum) == hvd.size()

The body runs between `init` and `shutdown`, on one thread of torch, with the values of
`pytest.mark.parametrize` and of fixtures, which have to be picklable.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aiacc import basics
from tests.support.ranks import run_ranks


def on_ranks(*sizes: Any, **options: Any) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run the test once for each of these numbers of ranks, with options of `run_ranks`."""

    def decorate(body: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(size: int, **arguments: Any) -> None:
            run_ranks(size, _Body(body), arguments, **options)

        signature = inspect.signature(body)
        size = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = signature.replace(  # what pytest asks for
            parameters=[*signature.parameters.values(), size]
        )
        return pytest.mark.parametrize("size", sizes)(test)

    return decorate


class _Body:
    """The body of a test, which a rank finds by name."""

    def __init__(self, body: Callable[..., object]) -> None:
        self.__module__, self._name = body.__module__, body.__name__

    def __call__(self, arguments: Mapping[str, Any]) -> None:
        body = getattr(importlib.import_module(self.__module__), self._name).__wrapped__
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        basics.init()
        body(**arguments)
        basics.shutdown()
