"""Where the MPI library is looked for, and what is said when there is none."""

from __future__ import annotations

import pytest

from aiacc import _core, mpi_library


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    path = tmp_path / "libaiacc_mpi.so"
    path.touch()
    monkeypatch.setattr(mpi_library, "_PLUGIN", path)
    return path


def _answers(monkeypatch, reasons):
    """Let the core answer so, by library; what it is asked is recorded."""
    asked = []

    def load(plugin, library):
        asked.append(library)
        return reasons[library]

    monkeypatch.setattr(_core, "load_mpi", load)
    return asked


def test_build_without_plugin_is_explained(plugin, monkeypatch):
    plugin.unlink()
    asked = _answers(monkeypatch, {})
    assert "built without MPI" in mpi_library.load("")
    assert not asked


def test_first_library_that_loads_is_taken(plugin, monkeypatch):
    monkeypatch.setattr(mpi_library, "_candidates", lambda: iter(["a", "b", "a", "c"]))
    asked = _answers(monkeypatch, {"a": "is broken", "b": "", "c": ""})
    assert mpi_library.load("") == ""
    assert asked == ["a", "b"]


def test_every_reason_is_told(plugin, monkeypatch):
    monkeypatch.setattr(mpi_library, "_candidates", lambda: iter(["a", "b"]))
    _answers(monkeypatch, {"a": "is broken", "b": "is foreign"})
    assert mpi_library.load("") == "a: is broken; b: is foreign"


def test_named_library_is_the_only_one_tried(plugin, monkeypatch):
    asked = _answers(monkeypatch, {"mine": "is broken"})
    assert mpi_library.load("mine") == "mine: is broken"
    assert asked == ["mine"]


def test_no_library_at_all_is_explained(plugin, monkeypatch):
    monkeypatch.setattr(mpi_library, "_candidates", lambda: iter([]))
    assert "pip install mpich" in mpi_library.load("")


def test_library_of_the_wheel_is_a_candidate():
    assert any("libmpi.so." in candidate for candidate in mpi_library._candidates())
