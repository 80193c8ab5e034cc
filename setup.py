"""Drives CMake; everything that can be declared is in pyproject.toml."""

import os
import shlex
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def wheel_mpi_compiler() -> str:
    """The `mpicc` of the mpich wheel, "" without one.

    Build isolation puts it first on PATH, where it would hide an MPICH of the user's.
    """
    try:
        files = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        files = []
    found = [str(Path(file.locate()).resolve()) for file in files if file.name == "mpicc"]
    return found[0] if found else ""


class CMakeBuild(build_ext):
    """Builds the libraries, and the header of the C interface, into the package folder."""

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
            f"-DAIACC_MPICC_LAST={wheel_mpi_compiler()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


setup(
    ext_modules=[Extension("aiacc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
