"""Which MPIs the build finds: cmake/mpi.cmake, with compiler wrappers that are scripts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_program

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

pytestmark = pytest.mark.skipif(CMAKE is None, reason="no cmake")


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
    return path


def _find(tmp_path, *folders, **variables):
    """Output of the search; an error is in it."""
    (tmp_path / "harness.cmake").write_text(HARNESS)
    path = os.pathsep.join([*(str(tmp_path / name) for name in folders), "/nowhere"])
    given = [f"-D{name}={value}" for name, value in variables.items()]
    command = [str(CMAKE), "-DAIACC_MPI=ON", *given, "-P", "harness.cmake"]
    done = run_program(command, cwd=tmp_path, env={"PATH": path}, merged=True)
    return " ".join(done.stdout.split())


def test_the_first_of_each_kind_on_path_is_taken(tmp_path):
    _wrapper(tmp_path / "a" / "mpicc", MPICH, "5.0.2")
    _wrapper(tmp_path / "b" / "mpicc", MPICH, "4.0.2")
    _wrapper(tmp_path / "b" / "mpicc.openmpi", OPEN_MPI, "4.1.4")
    output = _find(tmp_path, "a", "b")
    assert "flavours=mpich;openmpi" in output
    assert "mpich=5.0.2 () /opt/a/include" in output
    assert "openmpi=4.1.4 () /opt/b/include" in output
    assert f"MPI plug-in for openmpi 4.1.4 (): {tmp_path}/b/mpicc.openmpi" in output


def test_the_wheel_gives_way_to_an_mpi_of_the_users(tmp_path):
    wheel = _wrapper(tmp_path / "a" / "mpicc", MPICH, "5.0.2")
    _wrapper(tmp_path / "b" / "mpicc", MPICH, "4.0.2")
    assert "mpich=4.0.2" in _find(tmp_path, "a", "b", AIACC_MPICC_LAST=wheel)
    assert "mpich=5.0.2" in _find(tmp_path, "a", AIACC_MPICC_LAST=wheel)


def test_several_may_be_named_and_nothing_else_is_looked_at(tmp_path):
    _wrapper(tmp_path / "a" / "mpicc", MPICH, "5.0.2")
    named = _wrapper(tmp_path / "b" / "my_mpicc", OPEN_MPI, "5.0.11")
    assert "flavours=openmpi mpich" in _find(tmp_path, "a", AIACC_MPICC=named)
    both = f"{named} {tmp_path}/a/mpicc"
    assert "flavours=openmpi;mpich" in _find(tmp_path, "a", AIACC_MPICC=both)


def test_a_wrapper_that_was_named_must_work(tmp_path):
    _wrapper(tmp_path / "a" / "mpicc", OPEN_MPI, "4.1.4")
    _wrapper(tmp_path / "a" / "broken", MPICH, "4.0.2", code=1)
    _wrapper(tmp_path / "a" / "other", OTHER)
    assert "absent is not a program" in _find(tmp_path, "a", AIACC_MPICC="mpicc absent")
    assert "cannot compile an MPI program" in _find(tmp_path, "a", AIACC_MPICC="broken")
    assert "neither MPICH nor Open MPI" in _find(tmp_path, "a", AIACC_MPICC="other")


def test_without_any_the_reason_is_kept(tmp_path):
    assert "reason=no mpicc was found" in _find(tmp_path)
    _wrapper(tmp_path / "a" / "mpicc", MPICH, "4.0.2", code=1)
    output = _find(tmp_path, "a")
    assert "flavours= mpich=" in output
    assert f"reason={tmp_path}/a/mpicc cannot compile" in output
