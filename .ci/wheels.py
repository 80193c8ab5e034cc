"""`make wheel`: one manylinux wheel for each CPython of VERSIONS that this machine has, in dist/.

All are built from one source distribution, so a file that it lacks is noticed. auditwheel then says
which systems a wheel is for, and must find nothing that it would have to copy into it. Wheels
without a plug-in for MPI have the same names, so they go to the folder without-mpi.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
VERSIONS = ("3.11", "3.12", "3.13")
#: Loaded at run time from wherever the user has them, or there before the library is.
EXCLUDED = ("libtensorflow_framework.so.*", "libmpi*", "libcuda*", "libnccl*")
#: What every wheel has; the MPI plug-ins are there if an mpicc was.
LIBRARIES = ("_core.cpython-{tag}-*.so", "libaiacc_core.so", "libaiacc_tensorflow.so")
PLUGINS = ("libaiacc_mpi_mpich.so", "libaiacc_mpi_openmpi.so")
WITHOUT_MPI = "without-mpi"
#: Prints the version if extension modules can be compiled for the interpreter.
ASK = (
    "import sys, sysconfig, pathlib;"
    "print('%d.%d' % sys.version_info[:2]) if"
    " (pathlib.Path(sysconfig.get_paths()['include']) / 'Python.h').exists() else sys.exit(1)"
)


def main() -> int:
    """Build the wheels; 1 without a single interpreter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    options = parser.parse_args()

    found = interpreters(candidates(options.versions))
    for version in options.versions:
        place = found.get(version, "none with Python.h was found; no wheel of it")
        print(f"CPython {version}: {place}", flush=True)
    wanted = [found[version] for version in options.versions if version in found]
    if not wanted:
        return 1
    source = unpacked_source()
    for python in wanted:
        wheel = repaired(built(python, source))
        for problem in problems(contents(wheel), wheel.name):
            print(f"{wheel.name}: {problem}", flush=True)
            return 1
        plugins = [name for name in PLUGINS if f"aiacc/{name}" in contents(wheel)]
        folder = options.output if plugins else options.output / WITHOUT_MPI
        folder.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.move(wheel, folder / wheel.name))
        size = f"{wheel.stat().st_size / 2**20:.1f} MiB"
        print(f"{wheel} ({size}; MPI: {', '.join(plugins) or 'none'})", flush=True)
    return 0


def candidates(versions: Iterable[str]) -> list[str]:
    """Programs that may be one of these interpreters: this one, PATH's, pyenv's."""
    paths = [sys.executable]
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in versions:
        paths += filter(None, [shutil.which(f"python{version}")])
        paths += map(str, sorted(home.glob(f"versions/{version}.*/bin/python{version}")))
    return paths


def interpreters(programs: Sequence[str]) -> dict[str, str]:
    """The first program of each version that can compile extension modules."""
    found: dict[str, str] = {}
    for program in programs:
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), program)
    return found


def unpacked_source() -> Path:
    """The contents of a source distribution, at a place that is always the same, for ccache."""
    shutil.rmtree(WORK, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(WORK)]
    subprocess.run([*command, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (archive,) = WORK.glob("*.tar.gz")
    shutil.unpack_archive(archive, WORK)
    return next(path for path in WORK.iterdir() if path.is_dir()).rename(WORK / "source")


def built(python: str, source: Path) -> Path:
    """The wheel of one interpreter, as the build leaves it."""
    folder = WORK / "built"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(source / "build", ignore_errors=True)  # of another interpreter
    run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def repaired(wheel: Path) -> Path:
    """The wheel under the tag of the oldest systems that it runs on."""
    excluded = [word for name in EXCLUDED for word in ("--exclude", name)]
    folder = WORK / "repaired"
    shutil.rmtree(folder, ignore_errors=True)
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", *excluded]
    run([*auditwheel, "--wheel-dir", str(folder), str(wheel)])
    (made,) = folder.glob("*.whl")
    return made


def contents(wheel: Path) -> list[str]:
    """Names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def problems(names: Sequence[str], wheel: str) -> list[str]:
    """What is wrong with a wheel of these files. Pure."""
    found = []
    tag = re.search(r"-cp(\d+)-cp\1-(\S+)\.whl$", wheel)
    if tag is None or "manylinux_" not in tag[2]:
        found.append("not a manylinux wheel of one CPython (expected -cpXY-cpXY-manylinux_...)")
    for pattern in LIBRARIES:
        name = pattern.format(tag=tag[1] if tag else "*")
        form = re.compile(re.escape(f"aiacc/{name}").replace(r"\*", "[^/]*"))
        if not any(form.fullmatch(path) for path in names):
            found.append(f"no aiacc/{name} (expected what the build makes)")
    copied = sorted(path for path in names if path.startswith("aiacc.libs/"))
    if copied:
        found.append(f"auditwheel copied {', '.join(copied)} (expected nothing; see EXCLUDED)")
    return found


def run(command: Sequence[str]) -> None:
    """Run a command that must succeed."""
    print(f"$ {shlex.join(command)}", flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
