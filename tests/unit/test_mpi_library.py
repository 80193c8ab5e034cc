"""Where the MPI library is looked for, and what is said when there is none."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from aiacc import _core, mpi_library, startup


@pytest.mark.parametrize(
    ("launcher", "available", "flavours"),
    [
        ("mpich", ["mpich", "openmpi"], ["mpich"]),
        ("openmpi", ["mpich", "openmpi"], ["openmpi"]),
        ("mpich", ["mpich"], ["mpich"]),
        (None, ["openmpi", "mpich"], ["mpich", "openmpi"]),
        (None, ["openmpi"], ["openmpi"]),
    ],
)
def test_the_launcher_decides(launcher, available, flavours):
    assert mpi_library.choose(launcher, available) == (flavours, "")


@pytest.mark.parametrize(
    ("launcher", "available", "parts"),
    [
        ("openmpi", ["mpich"], ["Open MPI's mpirun started", "built for MPICH", "libopenmpi-dev"]),
        ("mpich", ["openmpi"], ["MPICH's mpirun started", "use the mpirun of Open MPI", "mpicc"]),
        ("mpich", [], ["built for no MPI", "pip install mpich"]),
        (None, [], ["built without MPI"]),
    ],
)
def test_what_is_not_served_is_explained_with_the_remedy(launcher, available, parts):
    flavours, reason = mpi_library.choose(launcher, available)
    assert flavours == []
    for part in parts:
        assert part in reason
    assert "\n" not in reason


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Plug-ins for both flavours, which are only files; nothing of MPI is in this process."""
    monkeypatch.setattr(mpi_library, "_FOLDER", tmp_path)
    monkeypatch.setattr(mpi_library, "mapped_libraries", lambda *names, **process: iter([]))
    for flavour in mpi_library.NAMES:
        mpi_library.plugin(flavour).touch()
    return tmp_path


def _answers(monkeypatch, reasons):
    """Let the core answer so, by library; what it is asked is recorded."""
    asked = []

    def load(plugin, library):
        asked.append((plugin.rpartition("_")[2], library))
        return reasons[library]

    monkeypatch.setattr(_core, "load_mpi", load)
    return asked


def test_build_without_plugin_is_explained(both, monkeypatch):
    for flavour in mpi_library.NAMES:
        mpi_library.plugin(flavour).unlink()
    asked = _answers(monkeypatch, {})
    assert "built without MPI" in mpi_library.load("", None)
    assert "Open MPI's mpirun" in mpi_library.load("", "openmpi")
    assert not asked


def test_first_library_that_loads_is_taken(both, monkeypatch):
    monkeypatch.setattr(mpi_library, "_candidates", lambda flavour: iter(["a", "b", "a", "c"]))
    asked = _answers(monkeypatch, {"a": "is broken", "b": "", "c": ""})
    assert mpi_library.load("", "openmpi") == ""
    assert asked == [("openmpi.so", "a"), ("openmpi.so", "b")]


def test_every_reason_is_told(both, monkeypatch):
    monkeypatch.setattr(mpi_library, "_candidates", lambda flavour: iter(["a", "b"]))
    _answers(monkeypatch, {"a": "a is broken", "b": "b is foreign"})
    reason = mpi_library.load("", "mpich")
    assert "a is broken; b is foreign" in reason
    assert "pip install mpich" in reason


def test_named_library_is_the_only_one_tried(both, monkeypatch):
    asked = _answers(monkeypatch, {"mine": "mine is broken"})
    assert mpi_library.load("mine", "mpich") == "mine is broken"
    assert asked == [("mpich.so", "mine")]


def test_without_a_launcher_the_flavours_are_tried_in_turn(both, monkeypatch):
    asked = _answers(monkeypatch, {"mine": "mine is broken"})
    assert mpi_library.load("mine", None) == "mine is broken; mine is broken"
    assert asked == [("mpich.so", "mine"), ("openmpi.so", "mine")]


def test_what_the_process_has_loaded_is_the_only_one_tried(both, monkeypatch):
    mapped = ["/opt/lib/libmpi.so.40"]
    monkeypatch.setattr(mpi_library, "mapped_libraries", lambda *names, **process: iter(mapped))
    assert mpi_library.candidates("mine", "mpich") == mapped


def test_the_library_beside_mpirun_comes_first(tmp_path, monkeypatch):
    library = tmp_path / "libmpi.so.40"
    library.touch()
    (tmp_path / "libmpi.so.12").touch()
    monkeypatch.setattr(mpi_library, "_folders_of_launcher", lambda: iter([tmp_path]))
    assert mpi_library.candidates("", "openmpi")[0] == str(library)
    assert str(library) not in mpi_library.candidates("", "mpich")


def test_library_of_the_wheel_is_a_candidate():
    assert any("/lib/libmpi.so.12" in name for name in mpi_library.candidates("", "mpich"))


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
    topology = SimpleNamespace(cross_size=2)
    plan = SimpleNamespace(topologies=(topology, topology), lanes=4)
    provider = SimpleNamespace(rank=rank, size=2)
    started = (rank, 2, "Open MPI v4.1.4")
    monkeypatch.setattr(_core, "mpi_initialize", lambda lanes, timeout_s: started)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert startup._start_mpi(provider, plan, 1.0, mpirun=True) == ""
    assert ["one TCP connection" in str(warning.message) for warning in caught] == [True] * times


@pytest.mark.parametrize(
    ("mpirun", "remedy"),
    [
        (True, "set AIACC_MPI_LIBRARY to the library of the mpirun that is used"),
        (False, "no mpirun started this process: start the job by mpirun, or by `aiaccrun --mpi`"),
    ],
)
def test_an_mpi_that_knows_nothing_of_the_others(monkeypatch, mpirun, remedy):
    plan = SimpleNamespace(topologies=(SimpleNamespace(cross_size=1),), lanes=4)
    provider = SimpleNamespace(rank=1, size=2)
    alone = (0, 1, "MPICH Version: 5.0.2")
    monkeypatch.setattr(_core, "mpi_initialize", lambda lanes, timeout_s: alone)
    reason = startup._start_mpi(provider, plan, 1.0, mpirun=mpirun)
    assert reason == (f"MPICH Version: 5.0.2 says rank 0 of 1, the job says rank 1 of 2; {remedy}")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("flavour", "ranks", "lanes", "free", "enough"),
    [
        # As a container has it: 64 MiB.
        ("mpich", 8, 0, 64 * MIB, True),
        ("mpich", 9, 0, 64 * MIB, False),
        ("mpich", 3, 4, 64 * MIB, True),
        ("mpich", 4, 4, 64 * MIB, False),
        ("mpich", 4, 1, 64 * MIB, True),
        ("openmpi", 12, 8, 64 * MIB, True),
        ("openmpi", 13, 0, 64 * MIB, False),
        # Between what MPICH needs and what it needs not to crash.
        ("mpich", 2, 0, 20 * MIB, False),
        ("mpich", 1, 4, 0, True),
        ("openmpi", 64, 4, 1024 * MIB, True),
    ],
)
def test_a_host_with_little_shared_memory_is_found_before_mpi_finds_it(
    flavour, ranks, lanes, free, enough
):
    problem = mpi_library.memory_problem(flavour, ranks, lanes, free)
    assert (problem == "") == enough
    if not enough:
        assert f"/dev/shm has {free // MIB} MiB left" in problem
        assert "--shm-size" in problem
        assert ("AIACC_LANES" in problem) == (lanes > 1)
