"""Where the MPI library is looked for, and what is said when there is none."""

from __future__ import annotations

import pytest

from aiacc import _core, mpi_library


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


def _device(root, name, verbs, state="4: ACTIVE"):
    """What the kernel has of a network device, in this folder."""
    for path, text in (
        (f"sys/class/infiniband_verbs/{verbs}/ibdev", name),
        ("sys/class/infiniband_verbs/abi_version", "6"),
        (f"sys/class/infiniband/{name}/ports/1/state", state),
        (f"dev/infiniband/{verbs}", ""),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")


def test_a_host_without_network_devices_for_programs_has_no_fabric(tmp_path):
    assert mpi_library.fabrics(tmp_path) == []


def test_fabrics_are_devices_that_this_process_can_use(tmp_path):
    _device(tmp_path, "mlx5_1", "uverbs0")
    _device(tmp_path, "efa_0", "uverbs1")
    _device(tmp_path, "mlx5_2", "uverbs2", state="1: DOWN")
    _device(tmp_path, "mlx5_3", "uverbs3")
    (tmp_path / "dev/infiniband/uverbs3").unlink()
    for name in ("cxi0", "cxi1"):
        (tmp_path / "sys/class/cxi" / name).mkdir(parents=True)
    (tmp_path / "dev/cxi0").touch()
    assert mpi_library.fabrics(tmp_path) == ["cxi0", "efa_0", "mlx5_1"]


def test_a_container_that_sees_a_fabric_and_has_no_device_file_of_it_has_none(tmp_path):
    _device(tmp_path, "mlx5_0", "uverbs0")
    assert mpi_library.fabrics(tmp_path) == ["mlx5_0"]
    (tmp_path / "dev/infiniband/uverbs0").rename(tmp_path / "dev/uverbs0")
    assert mpi_library.fabrics(tmp_path) == []


def test_what_may_not_be_read_is_no_fabric_and_no_error(tmp_path, monkeypatch):
    _device(tmp_path, "mlx5_0", "uverbs0")

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(mpi_library.Path, "iterdir", refuse)
    assert mpi_library.fabrics(tmp_path) == []
