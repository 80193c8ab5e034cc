"""Virtual hosts for tests. They need root.

from tests.support.beds import bed_name, needed  # noqa: F401
pytestmark = pytest.mark.alone
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.bed import BedError
from bench.bed.bed import require_root, take_down
from tests.support.programs import needs


def _why_not() -> str:
    try:
        require_root()
    except BedError as error:
        return str(error)
    return ""


needed = needs(_why_not())


def traces(name: str) -> list[str]:
    """What is left of a bed."""
    folders = (Path("/run/netns"), Path("/sys/class/net"), Path("/run/aiacc-network"))
    found = [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    return sorted(entry for entry in found if entry.startswith(name) and "lock" not in entry)


@pytest.fixture(name="name")
def bed_name() -> Iterator[str]:
    """A name that no other bed of this machine has; nothing of it is left after the test."""
    chosen = f"t{secrets.token_hex(3)}"
    yield chosen
    left = traces(chosen)
    take_down(chosen)
    (Path("/run/aiacc-network") / f"{chosen}.lock").unlink(missing_ok=True)
    assert left == []
