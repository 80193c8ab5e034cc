"""What a result file says about where and from what it was measured."""

import functools
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("aiacc-distributed", "torch", "numpy", "mpich")


def describe() -> dict[str, Any]:
    """CPU, usable cores, memory and system of this machine."""
    return {
        "cpu": field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_kib": int((field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Installed versions of Python and of the packages that take part."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit(checkout: Path = ROOT) -> dict[str, Any]:
    """Commit of a checkout, and whether files that matter differ from it.

    Of a copy without history, AIACC_BENCH_COMMIT says which commit it is, whose files it has.
    """
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        paths = ("aiacc", "csrc", "bench", ":!bench/results")
        changed = _git(checkout, "status", "--porcelain", "--", *paths)
    except (OSError, subprocess.CalledProcessError):
        said = os.environ.get("AIACC_BENCH_COMMIT")
        return {"commit": said or "unknown", "dirty": said is None}
    return {"commit": head, "dirty": bool(changed)}


@functools.cache
def on_main(commit: str) -> bool:
    """Whether a commit is an ancestor of main, or of HEAD where there is no main."""
    for name in ("main", "origin/main", "HEAD"):
        if _known(name):
            return _known(commit) and _says("merge-base", "--is-ancestor", commit, name)
    return False


def changed(commit: str, paths: Sequence[str]) -> int:
    """Commits since ``commit`` that touch ``paths``; 0 if that commit is not known."""
    if not _known(commit):
        return 0
    return int(_git(ROOT, "rev-list", "--count", f"{commit}..HEAD", "--", *paths))


def kind(machine: Mapping[str, Any]) -> str:
    """Of which kind a described machine is: results of one kind may stand in one table."""
    host = f"{machine['cpu']}, {machine['cores']} cores"
    return f"{machine['gpu']['name']}, {host}" if "gpu" in machine else host


def busy() -> bool:
    """Whether others compute: over the last minute, and now.

    The load of the last minute alone may be what a cell before has left.
    """
    average, _, _, threads, _ = Path("/proc/loadavg").read_text().split()
    return float(average) > 1.0 and int(threads.partition("/")[0]) > 1  # one is this


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _known(name: str) -> bool:
    return _says("cat-file", "-e", f"{name}^{{commit}}")


def _says(*arguments: str) -> bool:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def field(path: str, name: str) -> str | None:
    """Value of the first ``name : value`` line of a /proc file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
