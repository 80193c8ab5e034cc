"""What a test needs that a machine may lack: there it is skipped, in CI it fails."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

#: Set by .ci/run, which builds and installs everything. tests/conftest.py clears the variable.
IN_CI = os.environ.get("AIACC_CI", "") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test, which needs what is missing; in CI, fail."""
    if IN_CI:
        pytest.fail(f"{what} (expected here: .ci/run builds and installs it)", pytrace=False)
    pytest.skip(what)


def needs(why_not: str) -> Any:
    """For a module: ``_needed = needs(what is missing)``, "" if nothing is; see `missing`."""

    @pytest.fixture(autouse=True)
    def needed() -> None:
        if why_not:
            missing(why_not)

    return needed
