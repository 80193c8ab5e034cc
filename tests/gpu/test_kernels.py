"""The kernels against their twins on the host, plain and under compute-sanitizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.programs import run_program
from tests.support.ranks import ROOT

PROGRAM = ROOT / "build/gpu/tests/gpu/gpu_check"
GROUPS = ["copies", "codes", "selections", "optimizers", "factors"]
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


@pytest.fixture(params=GROUPS)
def command(request):
    assert PROGRAM.exists(), f"{PROGRAM} is missing; make gpu-check builds it"
    return [str(PROGRAM), request.param]


def test_kernels_give_what_their_twins_give(command):
    assert "agree with their twins" in run_program(command, check=True).stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool, command):
    if not Path(SANITIZER).exists():
        pytest.skip("compute-sanitizer is not installed")
    checked = [SANITIZER, "--tool", tool, "--error-exitcode", "3", *command, "small"]
    done = run_program(checked, merged=True)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0, done.stdout
    assert "agree with their twins" in done.stdout
