"""A plugin for pytest: writes down which mutants each case reaches, see `tests.mutation`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

_REACHED = Path(os.environ.pop("MUTATION_REACHED", ""))
_found: dict[str, list[int]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    for name in _REACHED.iterdir():
        name.unlink()
    if "aiacc._mutant" in sys.modules:
        sys.modules["aiacc._mutant"]._SEEN.clear()
    yield
    _found[item.nodeid] = sorted(int(path.name) for path in _REACHED.iterdir())


def pytest_sessionfinish() -> None:
    _REACHED.with_name("cases.json").write_text(json.dumps(_found))
