"""Counts what a gradient passes from autograd's hook to its completed handle: functions and files.

.venv/bin/python .ci/hops [--list]

Builds the core in build/hops, instrumented and not optimised, and lets two ranks train a small
model with the default engine. Counted is what rank 0 enters of csrc/ and aiacc/ in its second step,
in any thread but that of the heartbeats, in one of several jobs. A function is the place where it
begins in the source: all instances of a template are one, lambdas count, and what the compiler
writes by itself (a destructor, the copy of a struct) does not.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from subprocess import check_call, check_output

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "hops"
JOBS = 3
SETTINGS = (
    f"-DPython_EXECUTABLE={sys.executable}",
    *("-DAIACC_CUDA=OFF", "-DAIACC_MPI=OFF", "-DCMAKE_BUILD_TYPE=Debug"),
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1 -finstrument-functions "
    "-finstrument-functions-exclude-file-list=/usr/include,/usr/lib,site-packages",
)
#: Where the compiler's own functions begin: at a class, or at a member that is its default.
UNWRITTEN = re.compile(r"\s*(template\b.*)?\b(struct|class|union|using)\b|.*= default;")
#: A member of a lambda that is not its body.
OF_LAMBDA = re.compile(r"#\d+\}::(?!operator\(\))")

#: Names by file and line.
Functions = dict[tuple[str, int], str]


def main() -> None:
    """Build, run the jobs, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the functions, by file")
    listed = parser.parse_args().list
    build()
    noted = {tuple(line.split()) for _ in range(JOBS) for line in run_job().splitlines()}
    kinds = {
        "C++": in_core([words[1:] for words in noted if words[0] == "C++"]),
        "Python": in_python([words[1:] for words in noted if words[0] == "Python"]),
    }
    kinds["together"] = kinds["C++"] | kinds["Python"]
    for (file, line), name in sorted(kinds["together"].items()) if listed else ():
        print(f"{file}:{line}  {name}")
    print(f"{'':8}{'functions':>10}{'files':>7}")
    for kind, functions in kinds.items():
        print(f"{kind:8}{len(functions):10}{len({file for file, _ in functions}):7}")


def build() -> None:
    """The package in build/hops: libraries of its own, and links to the sources in Python."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    check_call(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *SETTINGS])
    check_call(["cmake", "--build", BUILD, "--target", "_core"])
    check_call(["cc", "-shared", "-fPIC", "-o", BUILD / "entered.so", ROOT / ".ci/hops/entered.c"])
    for entry in (ROOT / "aiacc").iterdir():
        link = BUILD / "aiacc" / entry.name
        if entry.suffix != ".so" and not link.exists():
            link.symlink_to(entry)


def run_job() -> str:
    """What rank 0 prints; the limit is so long that neither heartbeats nor ticks come between."""
    os.environ.update(PYTHONPATH=str(BUILD), AIACC_PEER_TIMEOUT_S="3600")
    command = f"-m aiacc.run -np 2 env LD_PRELOAD={BUILD}/entered.so {sys.executable}"
    step = ROOT / ".ci/hops/step.py"
    # Where `-m` finds no aiacc but that of PYTHONPATH.
    return check_output([sys.executable, *command.split(), step], cwd=BUILD, text=True)


def in_core(noted: list[tuple[str, ...]]) -> Functions:
    """Where the addresses are in the source."""
    found: Functions = {}
    for library in {library for library, _ in noted}:
        addresses = [address for of, address in noted if of == library]
        output = check_output(["addr2line", "-fCe", library, *addresses], text=True).splitlines()
        for name, place in zip(output[::2], output[1::2], strict=True):
            match = re.search(r".*\b(csrc/[^:]+):(\d+)", place)
            if match and not OF_LAMBDA.search(name):
                file, line = match[1], int(match[2])
                if not UNWRITTEN.match((ROOT / file).read_text().splitlines()[line - 1]):
                    found[file, line] = name
    return found


def in_python(noted: list[tuple[str, ...]]) -> Functions:
    """Those of the package; comprehensions and the bodies of modules are none."""
    found: Functions = {}
    for path, line, name in noted:
        file = Path(path).resolve()
        if ROOT / "aiacc" in file.parents and (name[0] != "<" or name == "<lambda>"):
            found[str(file.relative_to(ROOT)), int(line)] = name
    return found


if __name__ == "__main__":
    main()
