"""The kernels against their twins on the host, plain and under compute-sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.ranks import ROOT

NAMES = ("kernels", "codes", "optim", "factors")
PROGRAMS = {name: ROOT / f"build/gpu/tests/gpu/gpu_{name}_check" for name in NAMES}
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(params=PROGRAMS)
def program(request):
    path = PROGRAMS[request.param]
    assert path.exists(), f"{path} is missing; make gpu-check builds it"
    return str(path)


def test_kernels_give_what_their_twins_give(program):
    done = _run(program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree with their twins" in done.stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool, program):
    if not Path(SANITIZER).exists():
        pytest.skip("compute-sanitizer is not installed")
    done = _run(SANITIZER, "--tool", tool, "--error-exitcode", "3", program, "small")
    output = done.stdout + done.stderr
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0, output
    assert "agree with their twins" in output
