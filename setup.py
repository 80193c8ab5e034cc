"""Drives CMake; everything that can be declared is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def mpi_compiler() -> str:
    """The `mpicc` to build the plug-in with: the user's if there is one, else the mpich wheel's."""
    if named := os.environ.get("AIACC_MPICC"):
        return named
    try:
        files = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        files = []
    from_wheel = [Path(file.locate()).resolve() for file in files if file.name == "mpicc"]
    # Build isolation puts the wheel first on PATH, where it would hide the user's own MPI.
    for folder in os.get_exec_path():
        found = shutil.which("mpicc", path=folder)
        if found and Path(found).resolve() not in from_wheel:
            return found
    return str(from_wheel[0]) if from_wheel else ""


class CMakeBuild(build_ext):
    """Builds the module and the MPI plug-in into the package folder."""

    def run(self) -> None:
        self.in_place = bool(self.inplace) or self.editable_mode
        super().run()

    def copy_extensions_to_source(self) -> None:
        """Nothing to copy: CMake writes to the source tree itself."""

    def build_extension(self, ext: Extension) -> None:
        # The Makefile runs CMake itself, with tests and other flags; pip then only links the tree.
        if os.environ.get("AIACC_SKIP_CMAKE"):
            return
        package = (ROOT if self.in_place else Path(self.build_lib).resolve()) / "aiacc"
        build = Path(self.build_temp).resolve() / sysconfig.get_config_var("SOABI")
        configure = [
            "cmake",
            *("-S", str(ROOT), "-B", str(build), "-G", "Ninja", "--fresh"),
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DAIACC_OUTPUT_DIR={package}",
            f"-DAIACC_MPICC={mpi_compiler()}",
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


setup(
    ext_modules=[Extension("aiacc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
