"""Runs clang-tidy over the C++ sources of the `dev` build, several files at a time.

With --changed over those that differ from AIACC_TIDY_BASE or, without it, from the main branch, or
on it from what it was six hours ago, and over those that include what does. Without a history to
compare with these are all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The one that `make build/stamps/tidy` installs beside this interpreter, else the first on PATH.
TIDY = shutil.which("clang-tidy", path=str(Path(sys.executable).parent)) or "clang-tidy"


def main() -> int:
    """Check the files; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "dev")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--changed", action="store_true", help="only what has changed, see above")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of csrc")
    options = parser.parse_args()

    commands = json.loads((options.build / "compile_commands.json").read_text())
    known = sorted({Path(command["file"]).resolve() for command in commands})
    wanted = {path.resolve() for path in options.files}
    files = [
        path for path in known if (path in wanted if wanted else (ROOT / "csrc") in path.parents)
    ]
    if options.changed and (base := base_commit()):
        affected = including(changed_since(base))
        files = [path for path in files if path in affected]

    def check(path: Path) -> tuple[Path, int, str]:
        done = subprocess.run(
            # What GCC has precompiled clang-tidy reads as text.
            [TIDY, "--quiet", "--extra-arg=-Wno-ignored-gch", "-p", str(options.build), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        return path, done.returncode, done.stdout

    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for path, code, text in pool.map(check, files):
            if code != 0:
                failed += 1
                sys.stdout.write(f"{path.relative_to(ROOT)}:\n{text}\n")
    sys.stdout.write(f"clang-tidy: {len(files)} files, {failed} with findings\n")
    return 1 if failed else 0


def git(*arguments: str) -> str:
    """What git prints, "" if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return done.stdout.strip()


def base_commit() -> str:
    """The commit that the tree is compared with, "" if there is none."""
    fork = git("merge-base", "HEAD", os.environ.get("AIACC_TIDY_BASE") or "origin/main")
    if fork and fork != git("rev-parse", "HEAD"):
        return fork
    return git("rev-list", "-1", "--first-parent", "--before=6 hours ago", "HEAD")


def changed_since(base: str) -> set[Path]:
    """Files of csrc that differ from the commit; all of them if the checks do."""
    names = git("diff", "--name-only", base).splitlines()
    if ".clang-tidy" in names:
        return set((ROOT / "csrc").rglob("*.*"))
    return {ROOT / name for name in names if name.startswith("csrc/")}


def including(changed: set[Path]) -> set[Path]:
    """The files, and all of csrc that include one of them, however far away."""
    includers: dict[Path, set[Path]] = {}
    for path in (ROOT / "csrc").rglob("*.*"):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            includers.setdefault(ROOT / name, set()).add(path)
    found: set[Path] = set()
    more = set(changed)
    while more:
        found |= more
        more = set().union(*(includers.get(path, set()) for path in more)) - found
    return found


if __name__ == "__main__":
    sys.exit(main())
