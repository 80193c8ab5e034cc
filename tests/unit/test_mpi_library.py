"""Which MPIs the build finds, where the library is looked for, and what is said without one."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from aiacc import _core, mpi_library
from aiacc.config import UNKNOWN, MpiEnvironment
from tests.support.programs import ROOT, run_program


@pytest.mark.parametrize(
    ("launcher", "available", "flavours", "said"),
    [
        ("mpich", ["mpich", "openmpi"], ["mpich"], ""),
        ("openmpi", ["mpich", "openmpi"], ["openmpi"], ""),
        ("mpich", ["mpich"], ["mpich"], ""),
        (None, ["openmpi", "mpich"], ["mpich", "openmpi"], ""),
        (None, ["openmpi"], ["openmpi"], ""),
        ("openmpi", ["mpich"], [], "Open MPI's mpirun started.*built for MPICH.*libopenmpi-dev.*"),
        ("mpich", ["openmpi"], [], "MPICH's mpirun started.*use the mpirun of Open MPI.*mpicc.*"),
        ("mpich", [], [], ".*built for no MPI.*pip install mpich.*"),
        (None, [], [], ".*built without MPI.*"),
    ],
)
def test_the_launcher_decides_or_the_remedy_is_said(launcher, available, flavours, said):
    chosen, reason = mpi_library.choose(launcher, available)
    assert chosen == flavours
    assert re.fullmatch(said, reason)


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Plug-ins for both flavours, which are only files; nothing of MPI is in this process."""
    monkeypatch.setattr(mpi_library, "_FOLDER", tmp_path)
    monkeypatch.setattr(mpi_library, "mapped_libraries", lambda *names, **process: iter([]))
    for flavour in mpi_library.NAMES:
        mpi_library.plugin(flavour).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("library", "launcher", "answers", "asked", "said"),
    [
        ("", "openmpi", ["a is broken", "", ""], "openmpi a, openmpi b", ""),
        ("", "mpich", ["a is bad", "b is bad"], "mpich a, mpich b", ".*a is bad; b is bad.*"),
        ("c", "mpich", ["", "", "c is broken"], "mpich c", "c is broken"),
        ("c", None, ["", "", "c is broken"], "mpich c, openmpi c", "c is broken; c is broken"),
    ],
)
def test_the_first_that_loads_is_taken(both, monkeypatch, library, launcher, answers, asked, said):
    """`answers` are the core's when it is asked to load library a, b or c."""
    seen = []

    def load(plugin, candidate):
        flavour = plugin.rpartition("_")[2].removesuffix(".so")
        seen.append(f"{flavour} {candidate}")
        return answers["abc".index(candidate)]

    found = "abc"[: len(answers)] * 2
    monkeypatch.setattr(_core, "load_mpi", load)
    monkeypatch.setattr(mpi_library, "_candidates", lambda flavour: iter(found))
    assert re.fullmatch(said, mpi_library.load(library, launcher))
    assert ", ".join(seen) == asked


def test_build_without_plugin_is_explained(both, monkeypatch):
    for flavour in mpi_library.NAMES:
        mpi_library.plugin(flavour).unlink()
    monkeypatch.setattr(_core, "load_mpi", None)
    assert "built without MPI" in mpi_library.load("", None)
    assert "Open MPI's mpirun" in mpi_library.load("", "openmpi")


def test_the_library_of_the_process_or_that_beside_mpirun_comes_first(tmp_path, monkeypatch):
    library = tmp_path / "libmpi.so.40"
    library.touch()
    (tmp_path / "libmpi.so.12").touch()
    monkeypatch.setattr(mpi_library, "_folders_of_launcher", lambda: iter([tmp_path]))
    assert mpi_library.candidates("", "openmpi")[0] == str(library)
    of_mpich = mpi_library.candidates("", "mpich")
    assert str(library) not in of_mpich
    assert any("/lib/libmpi.so.12" in name for name in of_mpich), "that of the wheel"
    mapped = ["/opt/lib/libmpi.so.40"]
    monkeypatch.setattr(mpi_library, "mapped_libraries", lambda *names, **process: iter(mapped))
    assert mpi_library.candidates("mine", "mpich") == mapped


def test_an_mpi_with_one_flow_per_peer_is_told_with_the_remedy():
    open_mpi = "Open MPI v5.0.11, package: Open MPI"
    text = mpi_library.warning_about_flows(open_mpi, hosts=2, lanes=4)
    assert re.search(r"v5\.0\.11.*4 lanes.*AIACC_ENGINE=tcp", text)
    for version, hosts, lanes in ((open_mpi, 1, 4), (open_mpi, 2, 1), ("MPICH Version: 5", 2, 4)):
        assert mpi_library.warning_about_flows(version, hosts, lanes) is None


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
def test_little_shared_memory_is_found_before_mpi_finds_it(flavour, ranks, lanes, free, enough):
    problem = mpi_library.memory_problem(flavour, ranks, lanes, free)
    assert (problem == "") == enough
    if not enough:
        assert f"/dev/shm has {free // MIB} MiB left" in problem
        assert "--shm-size" in problem
        assert ("AIACC_LANES" in problem) == (lanes > 1)


@pytest.mark.parametrize(("flavour", "size"), [("mpich", 2), ("mpich", 1), ("openmpi", 2)])
def test_no_shared_memory_is_found_before_mpich_finds_it(flavour, size, tmp_path, monkeypatch):
    monkeypatch.setattr(mpi_library, "SHARED_MEMORY", str(tmp_path / "none"))
    problem = mpi_library.lack_of_memory(MpiEnvironment(flavour, 0, size, 0, size, UNKNOWN, ""), 4)
    assert ("none cannot be written" in problem) == ((flavour, size) == ("mpich", 2)), problem


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


def test_fabrics_are_devices_that_this_process_can_use(tmp_path):
    assert mpi_library.fabrics(tmp_path) == []
    _device(tmp_path, "mlx5_1", "uverbs0")
    _device(tmp_path, "efa_0", "uverbs1")
    _device(tmp_path, "mlx5_2", "uverbs2", state="1: DOWN")
    _device(tmp_path, "mlx5_3", "uverbs3")
    for name in ("cxi0", "cxi1"):
        (tmp_path / "sys/class/cxi" / name).mkdir(parents=True)
    (tmp_path / "dev/cxi0").touch()
    # As in a container that sees a device and has no file of it, or has it elsewhere.
    (tmp_path / "dev/infiniband/uverbs3").rename(tmp_path / "dev/uverbs3")
    assert mpi_library.fabrics(tmp_path) == ["cxi0", "efa_0", "mlx5_1"]


CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")

#: Prints what the build has found.
HARNESS = f"""cmake_minimum_required(VERSION 3.25)
set(CMAKE_BINARY_DIR ${{CMAKE_CURRENT_BINARY_DIR}})
set(CMAKE_READELF false)
include({ROOT}/cmake/mpi.cmake)
message("flavours=${{AIACC_MPI_FLAVOURS}}")
message("mpich=${{AIACC_MPI_mpich}} ${{AIACC_MPI_mpich_INCLUDES}}")
message("openmpi=${{AIACC_MPI_openmpi}} ${{AIACC_MPI_openmpi_INCLUDES}}")
message("reason=${{AIACC_MPI_REASON}}")
"""

MPICH = 'aiacc_mpich \\"{version}\\"\naiacc_openmpi OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.X'
OPEN_MPI = "aiacc_mpich MPICH_VERSION\naiacc_openmpi {version}"
OTHER = "aiacc_mpich MPICH_VERSION\naiacc_openmpi OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.X"


def _wrapper(path, text, version="", code=0):
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"""#!/bin/sh
case $1 in
  -E) printf "%s\\n" "{text.format(version=version)}"; exit {code};;
  -show) echo "gcc -I/opt/{path.parent.name}/include -L/lib -lmpi";;
  *) exit 1;;
esac
"""
    )
    path.chmod(0o755)


def _find(tmp_path, *folders, **variables):
    """Output of the search; an error is in it."""
    if CMAKE is None:
        pytest.skip("no cmake")
    (tmp_path / "harness.cmake").write_text(HARNESS)
    path = os.pathsep.join([*(str(tmp_path / name) for name in folders), "/nowhere"])
    given = [f"-D{name}={value}" for name, value in variables.items()]
    command = [str(CMAKE), "-DAIACC_MPI=ON", *given, "-P", "harness.cmake"]
    done = run_program(command, cwd=tmp_path, env={"PATH": path}, merged=True)
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("folders", "variables", "texts"),
    [
        # The first of each kind on PATH is taken.
        ("ab", {}, ["flavours=mpich;openmpi", "mpich=5.0.2 () /opt/a/include"]),
        ("ab", {}, ["openmpi=4.1.4 () /opt/b/include", "openmpi 4.1.4 (): {path}/b/mpicc.openmpi"]),
        # The wheel gives way to an MPI of the user's.
        ("ab", {"AIACC_MPICC_LAST": "{path}/a/mpicc"}, ["mpich=4.0.2"]),
        ("a", {"AIACC_MPICC_LAST": "{path}/a/mpicc"}, ["mpich=5.0.2"]),
        # Several may be named, which must work, and nothing else is looked at.
        ("a", {"AIACC_MPICC": "{path}/b/my_mpicc"}, ["flavours=openmpi mpich"]),
        ("a", {"AIACC_MPICC": "{path}/b/my_mpicc {path}/a/mpicc"}, ["flavours=openmpi;mpich"]),
        ("a", {"AIACC_MPICC": "mpicc absent"}, ["absent is not a program"]),
        ("c", {"AIACC_MPICC": "mpicc"}, ["cannot compile an MPI program"]),
        ("c", {"AIACC_MPICC": "other"}, ["neither MPICH nor Open MPI"]),
        # Without any the reason is kept.
        ("", {}, ["reason=no mpicc was found"]),
        ("c", {}, ["flavours= mpich=", "reason={path}/c/mpicc cannot compile"]),
    ],
)
def test_which_mpis_the_build_finds(tmp_path, folders, variables, texts):
    _wrapper(tmp_path / "a" / "mpicc", MPICH, "5.0.2")
    _wrapper(tmp_path / "b" / "mpicc", MPICH, "4.0.2")
    _wrapper(tmp_path / "b" / "mpicc.openmpi", OPEN_MPI, "4.1.4")
    _wrapper(tmp_path / "b" / "my_mpicc", OPEN_MPI, "5.0.11")
    _wrapper(tmp_path / "c" / "mpicc", MPICH, "4.0.2", code=1)
    _wrapper(tmp_path / "c" / "other", OTHER)
    given = {name: value.format(path=tmp_path) for name, value in variables.items()}
    output = _find(tmp_path, *folders, **given)
    assert [text for text in texts if text.format(path=tmp_path) not in output] == [], output
