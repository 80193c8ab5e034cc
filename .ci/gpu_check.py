"""`make gpu-check`: builds, tests and measures on a machine with one GPU, with what it has.

Needs a Python with torch (CUDA), pybind11, numpy, ml_dtypes, pytest and pytest-timeout, and nvcc,
cmake and ninja on PATH; downloads nothing. Each stage is a command of its own, for machines that
limit how long one may take: python .ci/gpu_check.py build | test | bench.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu"
MODULES = ("torch", "numpy", "ml_dtypes", "pybind11", "pytest", "pytest_timeout")
PROGRAMS = ("c++", "cmake", "ninja", "nvcc", "nvidia-smi")
STAGES = ("build", "test", "bench")
#: As pyproject.toml has it.
PYBIND11 = ((3, 0), (3, 2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", help="build, test, bench; all of them by default")
    stages = parser.parse_args().stages or STAGES
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        parser.error(f"stages {unknown} (expected some of {', '.join(STAGES)})")
    os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"
    problem = missing()
    if problem:
        print(f"gpu-check: {problem}; nothing was checked", file=sys.stderr)
        return 2
    for stage in stages:
        began = time.monotonic()
        code = {"build": build, "test": test, "bench": bench}[stage]()
        print(f"gpu-check: {stage} took {time.monotonic() - began:.0f} s and ended with {code}")
        if code != 0:
            return code
    return 0


def missing() -> str:
    """What this machine lacks, or ""."""
    absent = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if absent:
        return f"{sys.executable} has no {', '.join(absent)} (expected them installed)"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found on PATH (expected a machine with a GPU and CUDA)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"{header} is missing (expected the development files of {sys.executable})"
    import pybind11
    import torch

    if not PYBIND11[0] <= pybind11.version_info[:2] < PYBIND11[1]:
        return f"pybind11 {pybind11.__version__} (expected 3.0 or 3.1); carry a wheel of one"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU (expected one; check nvidia-smi)"
    return ""


def build() -> int:
    """The core for this GPU, in place, and the programs that check and measure kernels."""
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    configure = [
        *("cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"),
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DAIACC_OUTPUT_DIR={ROOT / 'aiacc'}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DAIACC_CUDA_ARCHITECTURES={major}{minor}",
        *("-DAIACC_GPU_CHECK=ON", "-DAIACC_MPI=OFF"),
    ]
    return run(configure) or run(["cmake", "--build", str(BUILD)])


def test() -> int:
    """tests/gpu, several at a time if pytest-xdist is there.

    Warnings of libraries whose versions nobody chose are no errors here.
    """
    options = ["-rs", "--durations=10", "-W", "default"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-n", str(min(8, len(os.sched_getaffinity(0))))]
    return run([sys.executable, "-m", "pytest", "tests/gpu", *options])


def bench() -> int:
    """Rows of bench/gpu, each whether others fail or not; writes bench/results/gpu.*.json.

    Where the tree has no history, AIACC_BENCH_COMMIT says from which commit it is.
    """
    sys.path.insert(0, str(ROOT))
    from bench.row import ROWS

    names = [row.name for row in ROWS if "gpu" in row.needs]
    return max(run([sys.executable, "-m", "bench", name, "--write"]) for name in names)


def run(command: list[str]) -> int:
    print("$", *command, flush=True)
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
