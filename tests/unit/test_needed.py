"""What is missing fails in CI and skips elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variables", "outcome"), [({}, "1 skipped"), ({"AIACC_CI": "1"}, "1 failed")]
)
def test_a_test_that_misses_something(variables, outcome, tmp_path):
    # With the conftest of the tests, which clears the variable.
    program = "from tests.support.needed import missing\ndef test_it(): missing('no plug-in')\n"
    (tmp_path / "test_it.py").write_text(program)
    arguments = [
        "-q",
        "-rs",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(tmp_path / "test_it.py")],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no plug-in" in done.stdout
