"""Virtual hosts for tests. They need root.

from tests.support.beds import bed_name, needed  # noqa: F401
pytestmark = pytest.mark.alone
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.network.bed import BedError, require_root, take_down
from tests.support.needed import needs


def _why_not() -> str:
    try:
        require_root()
    except BedError as error:
        return str(error)
    return ""


needed = needs(_why_not())


@pytest.fixture(name="name")
def bed_name() -> Iterator[str]:
    """A name that no other bed of this machine has."""
    chosen = f"t{secrets.token_hex(3)}"
    yield chosen
    take_down(chosen)
    (Path("/run/aiacc-network") / f"{chosen}.lock").unlink(missing_ok=True)
