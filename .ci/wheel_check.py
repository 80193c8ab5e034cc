"""`make wheel-check`: each wheel of dist/ in an empty virtual environment, without a compiler.

There it is asked what it can do, and trains the examples on two ranks, by aiaccrun and, if it
has the plug-in, by mpirun; that for Keras where TensorFlow exists for that Python.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = ("c++", "cc", "clang", "cmake", "g++", "gcc", "nvcc")
#: Of the caller's variables, only pip gets these: how to reach a package index.
FOR_PIP = re.compile(r"PIP_.*|SSL_CERT_(FILE|DIR)|.*_CA_BUNDLE|https?_proxy|no_proxy", re.I)


def main() -> int:
    """Check the wheels; 1 if there is none or one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="torch", help="requirement to install first; '': none")
    parser.add_argument("--tensorflow", default="tensorflow", help="requirement of it")
    parser.add_argument("wheels", nargs="*", type=Path, help="default: all of dist")
    options = parser.parse_args()

    files = options.wheels or sorted((ROOT / "dist").rglob("*.whl"))
    if not files:
        print(f"no wheels in {ROOT / 'dist'} (expected those of `make wheel`)", flush=True)
        return 1
    found = wheels.interpreters(wheels.candidates(wheels.VERSIONS))
    failed = [
        wheel for wheel in files if not passes(wheel, found, options.torch, options.tensorflow)
    ]
    for wheel in failed:
        print(f"FAILED: {wheel.name}", flush=True)
    return 1 if failed else 0


def passes(wheel: Path, pythons: Mapping[str, str], torch: str, tensorflow: str) -> bool:
    """Whether one wheel installs and trains."""
    version = version_of(wheel)
    if version not in pythons:
        print(f"{wheel.name}: there is no CPython {version} to install it for", flush=True)
        return False
    print(f"== {wheel}", flush=True)
    # Nothing of the source tree may be found from there.
    with tempfile.TemporaryDirectory(prefix="aiacc-wheel-") as folder:
        home = Path(folder)
        shutil.copytree(ROOT / "examples", home / "examples")
        subprocess.run([pythons[version], "-m", "venv", str(home / "venv")], check=True)
        environment = without_compiler(home)
        has_mpi = f"aiacc/{wheels.PLUGINS[0]}" in wheels.contents(wheel)
        return install(wheel, home, environment, torch) and train(
            home, environment, torch, tensorflow, has_mpi=has_mpi
        )


def install(wheel: Path, home: Path, environment: Mapping[str, str], torch: str) -> bool:
    """Install the wheel with its extras, torch first, and ask it what it can do."""
    extras = "examples,mpi,torch" if torch else "examples,mpi"
    return (
        (not torch or pip(home, environment, torch))
        and pip(home, environment, f"{wheel.resolve()}[{extras}]")
        and call(home, environment, "aiaccrun", "--check-build")
    )


def train(
    home: Path, environment: Mapping[str, str], torch: str, tensorflow: str, *, has_mpi: bool
) -> bool:
    """The examples, on two ranks; that of TensorFlow if there is one for this Python."""
    examples = [("python", "examples/digits.py", "--epochs", "3")] if torch else []
    if pip(home, environment, tensorflow):
        examples.append(("python", "examples/keras_digits.py", "--epochs", "2", "--verbose", "2"))
    else:
        print(f"{tensorflow} cannot be installed for this Python: no Keras example", flush=True)
    launchers = ["aiaccrun", "mpirun"] if has_mpi else ["aiaccrun"]
    return bool(examples) and all(
        call(home, environment, launcher, "-np", "2", *example)
        for example in examples
        for launcher in launchers
    )


def version_of(wheel: Path) -> str:
    """The version of CPython that a wheel is for, as in 3.12.

    Raises:
        ValueError: The name is not that of a wheel for one version of CPython.
    """
    tag = re.search(r"-cp(\d)(\d+)-cp", wheel.name)
    if tag is None:
        raise ValueError(
            f"{wheel.name}: for no version of CPython (expected a name with -cpXY-cpXY-); "
            "build it by `make wheel`"
        )
    return f"{tag[1]}.{tag[2]}"


def without_compiler(home: Path) -> dict[str, str]:
    """Variables of an environment whose programs are those of its virtual environment alone."""
    path = str(home / "venv" / "bin")
    present = [name for name in COMPILERS if shutil.which(name, path=path)]
    if present:
        raise RuntimeError(f"{path} has {', '.join(present)} (expected no compiler)")
    return {"PATH": path, "HOME": str(home), "OMP_NUM_THREADS": "1"}


def pip(home: Path, environment: Mapping[str, str], *requirements: str) -> bool:
    """Install packages, as wheels only: what would have to be compiled is an error."""
    for_pip = {name: value for name, value in os.environ.items() if FOR_PIP.fullmatch(name)}
    command = ("python", "-m", "pip", "install", "-q", "--only-binary", ":all:", *requirements)
    return call(home, {**for_pip, **environment}, *command)


def call(home: Path, environment: Mapping[str, str], *command: str) -> bool:
    """Whether a command of the virtual environment succeeds."""
    print(f"$ {shlex.join(command)}", flush=True)
    program = home / "venv" / "bin" / command[0]
    done = subprocess.run([program, *command[1:]], cwd=home, env=dict(environment), check=False)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
