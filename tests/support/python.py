"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -c program`` with ``environment`` and nothing of this process's own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
    )
