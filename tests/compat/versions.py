"""The tests of the front-ends on versions that pyproject.toml allows: `make versions`.

Each cell is a framework and a Python, in an environment of its own under build/versions, made when
it is first needed. All import the aiacc of this checkout; the module for another Python is built
beside that of `make build`.

    python -m tests.compat.versions                      # all; writes RESULTS
    python -m tests.compat.versions tensorflow-2.16.2    # these; RESULTS keeps the others
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.support.ranks import ROOT, rank_environment

RESULTS = Path(__file__).with_suffix(".json")
ENVIRONMENTS = ROOT / "build" / "versions"
TOOLS = (
    *("pytest==8.4.2", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0", "scikit-learn==1.7.2"),
    *("mpich==5.0.2", "pybind11==3.1.0"),
)
#: Tests of TensorFlow that need torch, which is not installed there. They run in `make test`.
NEED_TORCH = {
    "test_its_steps_are_those_of_torchs": "needs torch",
    "test_training_with_torch_in_turn": "needs torch",
    "test_the_recipe_finds_what_suits_the_data_of_all_ranks": "needs torch",
    "test_keras_on_another_backend_is_refused": "needs torch",
}
#: Tests of a torch without CUDA. They run in `make test`.
HAS_CUDA = {"test_fake_gpu": "torch takes the fake driver for a real one, and starts threads"}


class Cell(NamedTuple):
    """What is installed, and which tests run on it."""

    #: For pip, with what they depend on.
    packages: tuple[str, ...]
    #: Files and folders.
    tests: tuple[str, ...]
    #: Packages whose versions RESULTS has.
    shown: tuple[str, ...]
    #: For pip, alone: tf_keras wants tensorflow where tensorflow-cpu stands for it.
    alone: tuple[str, ...] = ()
    #: "3.10", say, to be found on PATH; "" the one that runs this.
    python: str = ""
    #: Names of tests that do not run, and why.
    without: Mapping[str, str] = MappingProxyType({})


def _tensorflow(version: str, keras: str, tf_keras: str) -> Cell:
    """A TensorFlow, with Keras as it was when that appeared."""
    return Cell(
        (f"tensorflow-cpu=={version}", f"keras=={keras}"),
        ("tests/unit/tensorflow", "tests/parallel/tensorflow"),
        ("tensorflow-cpu", "keras", "numpy", "protobuf"),
        alone=(f"tf_keras=={tf_keras}",),
        without=NEED_TORCH,
    )


def _torch(python: str, *packages: str) -> Cell:
    tests = ("tests/unit/torch", "tests/parallel/torch", "tests/parallel/test_array_ops.py")
    return Cell((*packages, "ml-dtypes==0.5.4"), tests, ("torch", "numpy"), (), python, HAS_CUDA)


#: The oldest and the newest, and for TensorFlow some between.
CELLS = {
    "tensorflow-2.16.2": _tensorflow("2.16.2", "3.4.1", "2.16.0"),
    "tensorflow-2.18.1": _tensorflow("2.18.1", "3.8.0", "2.18.0"),
    "tensorflow-2.20.0": _tensorflow("2.20.0", "3.11.3", "2.20.1"),
    "tensorflow-2.21.0": _tensorflow("2.21.0", "3.15.1", "2.21.0"),
    "torch-2.4.0-python-3.10": _torch("3.10", "torch==2.4.0", "numpy<2"),
    "torch-newest-python-3.13": _torch("3.13", "torch", "numpy"),
}


def environment_of(name: str) -> Path:
    """The interpreter of a cell, whose packages are installed if they are not there yet."""
    cell = CELLS[name]
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    wanted = [*cell.packages, *TOOLS]
    stamp = folder / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != [*wanted, *cell.alone]:
        sys.stdout.write(f"installing {' '.join([*wanted, *cell.alone])}\n")
        maker = sys.executable if not cell.python else shutil.which(f"python{cell.python}")
        if maker is None:
            raise SystemExit(f"{name}: python{cell.python} is not on PATH (install it with venv)")
        subprocess.run([maker, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True)
        if cell.alone:
            subprocess.run([*pip, "--no-deps", *cell.alone], check=True)
        # The aiacc of this checkout, also for programs that run elsewhere.
        (packages,) = folder.glob("lib/python3.*/site-packages")
        (packages / "aiacc.pth").write_text(f"{ROOT}\n")
        stamp.write_text(json.dumps([*wanted, *cell.alone]))
    if cell.python:
        _build(folder, python)
    return python


def _build(folder: Path, python: Path) -> None:
    """The module for another Python, beside those in the package."""
    cmake, build = str(Path(sys.executable).parent / "cmake"), str(folder / "build")
    options = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "AIACC_OUTPUT_DIR": str(ROOT / "aiacc"),
        "Python_EXECUTABLE": str(python),
    }
    defined = [f"-D{key}={value}" for key, value in options.items()]
    subprocess.run([cmake, "-G", "Ninja", "-S", str(ROOT), "-B", build, *defined], check=True)
    subprocess.run([cmake, "--build", build], check=True)


def versions_in(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """What is really there."""
    program = (
        "import json, sys; from importlib.metadata import version\n"
        "found = {name: version(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({'python': sys.version.split()[0], **found}))"
    )
    done = subprocess.run(
        [str(python), "-c", program, *packages], capture_output=True, text=True, check=True, cwd="/"
    )
    return json.loads(done.stdout)


def run(name: str) -> dict[str, Any]:
    """Run the tests on one cell, and tell what became of them."""
    cell = CELLS[name]
    python = environment_of(name)
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        report = Path(folder) / "report.xml"
        # A warning of an old version's own is no failure of ours.
        options = ["-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}"]
        beside = ["-n", str(len(os.sched_getaffinity(0)) + 1), "--dist", "loadfile"]
        left_out = " and ".join(f"not {name}" for name in cell.without)
        subprocess.run(
            [str(python), "-m", "pytest", *options, *beside, "-k", left_out, *cell.tests],
            cwd=ROOT,
            env=rank_environment({"TORCHINDUCTOR_COMPILE_THREADS": "1"}),  # torch 2.4: no workers
            check=False,
        )
        summary = summary_of(report.read_text())
    return {"versions": versions_in(python, cell.shown), **summary}


def summary_of(report: str) -> dict[str, Any]:
    """What is written to RESULTS, from a report of pytest."""
    passed, skipped, failed = 0, {}, {}
    for case in ET.fromstring(report).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if not problems:
            passed += 1
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        why = (problems[0].get("message") or problems[0].tag).splitlines()[0]
        (skipped if problems[0].tag == "skipped" else failed)[name] = why
    return {"passed": passed, "skipped": skipped, "failed": failed}


def main(names: Sequence[str]) -> int:
    """See the module; 1 if a test failed."""
    unknown = sorted(set(names) - set(CELLS))
    if unknown:
        sys.stderr.write(f"{', '.join(unknown)} (expected one of {', '.join(CELLS)})\n")
        return 2
    before = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else {}
    now = {name: run(name) for name in names or CELLS}
    found = {**before, **now}
    results = {name: found[name] for name in CELLS if name in found}
    not_run = {name: dict(cell.without) for name, cell in CELLS.items() if cell.without}
    RESULTS.write_text(json.dumps({"not run": not_run, "results": results}, indent=1) + "\n")
    sys.stdout.write(RESULTS.read_text())
    return int(any(result["failed"] for result in now.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
