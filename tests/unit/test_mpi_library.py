"""Where the MPI library is looked for, and what is said when there is none."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from aiacc import _core, mpi_library, startup


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


def test_an_mpi_with_one_flow_per_peer_is_told_with_the_remedy():
    open_mpi = "Open MPI v5.0.11, package: Open MPI"
    text = mpi_library.warning_about_flows(open_mpi, hosts=2, lanes=4)
    assert text is not None
    assert "v5.0.11" in text
    assert "4 lanes" in text
    assert "AIACC_ENGINE=tcp" in text
    assert mpi_library.warning_about_flows(open_mpi, hosts=1, lanes=4) is None
    assert mpi_library.warning_about_flows(open_mpi, hosts=2, lanes=1) is None
    assert mpi_library.warning_about_flows("MPICH Version: 5.0.2", hosts=2, lanes=4) is None


@pytest.mark.parametrize(("rank", "times"), [(0, 1), (1, 0)])
def test_rank_0_warns_when_it_starts_such_an_mpi(monkeypatch, rank, times):
    place = SimpleNamespace(cross_size=2)
    agreement = SimpleNamespace(places=(place, place), lanes=4)
    provider = SimpleNamespace(rank=rank, size=2)
    started = (rank, 2, "Open MPI v4.1.4")
    monkeypatch.setattr(_core, "mpi_initialize", lambda lanes, timeout_s: started)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert startup._start_mpi(provider, agreement, 1.0) == ""
    assert ["one TCP connection" in str(warning.message) for warning in caught] == [True] * times
