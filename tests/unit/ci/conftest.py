"""Scripts of .ci as modules."""

import importlib
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[3] / ".ci"


@pytest.fixture
def script(monkeypatch):
    """Imports a script of .ci by its name; it finds its siblings as when it is run."""
    monkeypatch.syspath_prepend(CI)
    return importlib.import_module
