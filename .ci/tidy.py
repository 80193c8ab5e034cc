"""Runs clang-tidy over the C++ sources of the `dev` build, several files at a time."""

from __future__ import annotations

import argparse
import json
import os
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
    parser.add_argument("files", nargs="*", type=Path, help="default: all of csrc")
    options = parser.parse_args()

    commands = json.loads((options.build / "compile_commands.json").read_text())
    known = sorted({Path(command["file"]).resolve() for command in commands})
    wanted = {path.resolve() for path in options.files}
    files = [
        path for path in known if (path in wanted if wanted else (ROOT / "csrc") in path.parents)
    ]

    def check(path: Path) -> tuple[Path, int, str]:
        done = subprocess.run(
            # What GCC has compiled before (AIACC_PRECOMPILE) clang-tidy reads as text.
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


if __name__ == "__main__":
    sys.exit(main())
