"""Whether the tests of two commits kill the same mutants of the sources.

python -m tests.mutation --before COMMIT [--seed 38] [--each 5] [--area NAME ...]

Draws places from the sources of HEAD (tests.mutation.points), in an order that the seed decides,
and takes in each area the first ones that the tests of COMMIT reach. Two copies of HEAD below
build/mutation have all mutants in them, one of them with the tests of COMMIT. For each mutant the
cases that reach it run until one fails. Writes tests/mutation/results.json; 1 if a mutant dies
before and not after. Takes hours on a laptop.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.points import Point, plant, points_of
from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
NUMBER = WORK / "number"
REACHED = WORK / "reached"
RESULTS = ROOT / "tests" / "mutation" / "results.json"
#: Who runs longer hangs, and is dead.
LIMIT_S = 600
#: Places drawn for each that is wanted: not all are reached, and not all compile.
SPARE = 4


@dataclass(frozen=True)
class Area:
    """Sources, and what tests them: folders of tests/cpp, or files and folders for pytest."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "base": Area(("csrc/base",), ("base",)),
    "core": Area(
        ("csrc/core/*.cc", "csrc/core/dispatch", "csrc/core/execution", "csrc/core/submission"),
        ("core", "core/dispatch", "core/execution", "core/execution/gpu", "core/submission"),
    ),
    "negotiation": Area(("csrc/core/negotiation",), ("core/negotiation",)),
    "kernels": Area(
        ("csrc/kernels/*.cc", "csrc/kernels/selection", "csrc/kernels/gpu"),
        ("kernels", "kernels/selection", "kernels/gpu", "kernels/gpu/optim"),
    ),
    "bootstrap": Area(
        ("aiacc/bootstrap", "aiacc/run"),
        ("tests/unit/bootstrap", "tests/unit/run", "tests/parallel/launch/test_l*.py"),
    ),
    "compression": Area(
        ("aiacc/compression", "aiacc/torch/compression"),
        ("tests/unit/compression", "tests/parallel/compression", "tests/unit/torch/test_[clw]*.py"),
    ),
    "data": Area(("aiacc/data",), ("tests/unit/data",)),
    "decoupled": Area(("aiacc/torch/decoupled",), ("tests/parallel/decoupled", "tests/unit/torch")),
    "kfac": Area(
        ("aiacc/kfac", "aiacc/torch/kfac"),
        ("tests/unit/kfac", "tests/unit/torch/test_kfac*.py", "tests/parallel/kfac"),
    ),
    "optimizer": Area(
        ("aiacc/torch/*.py",),
        (
            "tests/parallel/torch/test_opt*.py",
            "tests/parallel/torch/test_gr*.py",
            "tests/parallel/decoupled/test_decoupled.py",
            "tests/unit/torch",
        ),
    ),
    "planning": Area(("aiacc/planning",), ("tests/unit/planning",)),
    "tensorflow": Area(
        ("aiacc/tensorflow",), ("tests/unit/tensorflow", "tests/parallel/tensorflow")
    ),
}


class Tree:
    """A copy of HEAD with all mutants, and the tests of a commit."""

    def __init__(self, name: str, commit: str, points: list[Point]) -> None:
        self.folder = WORK / name
        git("worktree", "remove", "--force", str(self.folder), check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        git("worktree", "add", "--detach", "-f", str(self.folder), "HEAD")
        shutil.rmtree(self.folder / "tests")
        git("checkout", commit, "--", "tests", folder=self.folder)
        plant(self.folder, points, NUMBER)
        for library in (ROOT / "aiacc").glob("*.so*"):  # as they are: only C++ tests have mutants
            shutil.copy(library, self.folder / "aiacc" / library.name)
        for name in ("include", "sources"):
            shutil.copytree(ROOT / "aiacc" / name, self.folder / "aiacc" / name)
        (self.folder / ".venv").symlink_to(ROOT / ".venv")
        built = self.folder / "build" / "dev"
        built.mkdir(parents=True)
        for name in ("tests", "generated"):
            (built / name).symlink_to(ROOT / "build" / "dev" / name)

    # ---- C++

    def build(self, folders: set[str]) -> list[Path]:
        """Compile the tests of these folders of tests/cpp; their programs."""
        build = self.folder / "build" / "mutants"
        flags = [f"-DCMAKE_CXX_FLAGS=-include {self.folder}/mutant.h", "-DCMAKE_BUILD_TYPE=Debug"]
        switches = ["-DAIACC_TESTS=ON", "-DAIACC_PYTHON=OFF", "-DAIACC_MPI=OFF", "-GNinja"]
        cmake = str(ROOT / ".venv/bin/cmake")
        run([cmake, "-S", str(self.folder), "-B", str(build), *flags, *switches], check=True)
        listed = run([cmake, "--build", str(build), "--target", "help"], check=True).stdout
        names = {line.split(":")[0] for line in listed.splitlines()}
        wanted = set()
        for folder in folders:
            stem = folder.replace("/", "_")
            inside = {path.stem for path in (self.folder / "tests/cpp" / folder).glob("*_test.cc")}
            wanted |= {f"{stem}_{name}" for name in inside} & names  # a program for each file
            top = folder.split("/")[0]
            wanted |= {f"{stem}_test", f"{top}_stages_test", f"{top}_gpu_test"} & names
        run([cmake, "--build", str(build), "--target", *sorted(wanted)], check=True, limit=7200)
        return [build / "tests" / "cpp" / name for name in sorted(wanted)]

    def record_programs(self, programs: list[Path]) -> dict[str, list[int]]:
        """Mutants that each program reaches."""
        found = {}
        for program in map(str, programs):
            NUMBER.write_text("-1")
            for name in REACHED.iterdir():
                name.unlink()
            if run([program], self.folder).returncode != 0:
                sys.stdout.write(f"{program} fails without a mutant\n")
            found[program] = sorted(int(path.name) for path in REACHED.iterdir())
        return found

    def kills_cpp(self, number: int, reached: dict[str, list[int]]) -> str:
        """The first program that fails with a mutant, "" if none does."""
        NUMBER.write_text(str(number))
        for program, numbers in reached.items():
            if number in numbers:
                done = run([program, "--gtest_fail_fast", "--gtest_brief=1"], folder=self.folder)
                if done.returncode != 0:
                    return Path(program).name
        return ""

    # ---- Python

    def record_cases(self, tests: tuple[str, ...]) -> dict[str, list[int]]:
        """Mutants that each case reaches."""
        NUMBER.write_text("-1")
        paths = [
            str(p.relative_to(self.folder)) for t in tests for p in sorted(self.folder.glob(t))
        ]
        environment = {"MUTATION_REACHED": str(REACHED)}
        command = [*PYTEST, "-p", "recorder", "-m", "not nightly and not gpu", *paths]
        done = run(command, self.folder, environment, limit=3600)
        if done.returncode != 0:
            sys.stdout.write(f"{self.folder.name} {tests}: {done.stdout[-1500:]}\n")
        found: dict[str, list[int]] = json.loads((WORK / "cases.json").read_text())
        return found

    def kills_python(self, number: int, reached: dict[str, list[int]]) -> str:
        """The first case that fails with a mutant, "" if none does."""
        NUMBER.write_text(str(number))
        cases = [case for case, numbers in reached.items() if number in numbers]
        listed = WORK / "cases.txt"
        listed.write_text("\n".join(cases) + "\n")
        command = [*PYTEST, "-x", "-m", "not nightly", f"@{listed}"]
        if not cases or (done := run(command, self.folder)).returncode == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return failed[1] if failed else "hangs"


PYTEST = (str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider")


def run(
    command: list[str],
    folder: Path = ROOT,
    env: dict[str, str] | None = None,
    *,
    check: bool = False,
    limit: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command; one that hangs has failed."""
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{folder}:{ROOT / 'tests/mutation'}",
        **(env or {}),
    }
    try:
        return run_program(
            command, env=variables, cwd=folder, check=check, merged=True, limit_s=limit
        )
    except AssertionError:
        if check:
            raise
        return subprocess.CompletedProcess(command, 124, "")


def git(*arguments: str, folder: Path = ROOT, check: bool = True) -> str:
    """What git prints."""
    return run(["git", *arguments], folder, check=check).stdout.strip()


def draw(area: Area, wanted: int, seed: int) -> list[Point]:
    """Places of an area, in the order of the seed."""
    files = git("ls-files", *area.sources).splitlines()
    points = points_of(ROOT, [file for file in files if file.endswith((".cc", ".py"))])
    random.Random(f"{seed}{area.sources}").shuffle(points)
    of_lines = {(point.file, point.line): point for point in reversed(points)}  # one for each
    return [point for point in points if of_lines[point.file, point.line] is point][
        : wanted * SPARE
    ]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--area", action="append", choices=AREAS, default=[])
    options = parser.parse_args()
    names = options.area or list(AREAS)

    REACHED.mkdir(parents=True, exist_ok=True)
    drawn = {name: draw(AREAS[name], options.each, options.seed) for name in names}
    points = [point for name in names for point in drawn[name]]
    trees = [Tree("before", options.before, points), Tree("after", "HEAD", points)]
    rows = []
    cpp = {folder for n in names if is_cpp(n) for folder in AREAS[n].tests}
    reached_cpp = [tree.record_programs(tree.build(cpp)) for tree in trees] if cpp else []
    for name in names:
        area = AREAS[name]
        reached = reached_cpp if is_cpp(name) else [t.record_cases(area.tests) for t in trees]
        known = {number for numbers in reached[0].values() for number in numbers}
        taken = [p for p in drawn[name] if points.index(p) in known][: options.each]
        for point in taken:
            number = points.index(point)
            kills = Tree.kills_cpp if is_cpp(name) else Tree.kills_python
            before, after = map(kills, trees, [number] * 2, reached)
            rows.append({"area": name, **point._asdict(), "before": before, "after": after})
            sys.stdout.write(f"{json.dumps(rows[-1])}\n")
            sys.stdout.flush()
            write(options, rows)
    lost = [row for row in rows if row["before"] and not row["after"]]
    sys.stdout.write(f"{len(rows)} mutants, {len(lost)} die before and not after\n")
    return 1 if lost else 0


def is_cpp(name: str) -> bool:
    """Whether an area is one of C++."""
    return AREAS[name].sources[0].startswith("csrc")


def write(options: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    """The result so far; rows of other areas stay."""
    names = {row["area"] for row in rows}
    others = json.loads(RESULTS.read_text())["mutants"] if RESULTS.exists() else []
    kept = [row for row in others if row["area"] not in names]
    all_rows = sorted(kept + rows, key=lambda row: str(row["area"]))
    summary = {
        "seed": options.seed,
        "before": git("rev-parse", options.before),
        "after": git("rev-parse", "HEAD"),
        "killed before": sum(bool(row["before"]) for row in all_rows),
        "killed after": sum(bool(row["after"]) for row in all_rows),
        "mutants": all_rows,
    }
    RESULTS.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
