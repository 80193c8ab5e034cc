"""Finds programs: the user's, and the mpirun to start it with."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from aiacc.config import MpiFlavour, executable_path, search_directories
from aiacc.run.command import MpiLauncher


def resolve_command(command: list[str]) -> list[str]:
    """The command with its program found: beside the interpreter first, then on PATH.

    A Python file that is not executable is run by the interpreter that runs aiaccrun.

    Raises:
        ValueError: There is no such program.
    """
    program, *arguments = command
    found = shutil.which(program, path=executable_path())
    if found:
        return [found, *arguments]
    if program.endswith(".py") and Path(program).is_file():
        python = shutil.which("python3", path=executable_path())
        if python:
            return [python, program, *arguments]
    raise ValueError(
        f"program {program!r} was not found (expected a file, or a name on PATH); "
        "for a script use `aiaccrun -np 2 python script.py`"
    )


def mpi_launchers() -> Iterator[MpiLauncher]:
    """Every mpirun that can be found: by PATH, then beside the interpreter."""
    beside, *path = search_directories()
    seen: set[Path] = set()
    for folder in dict.fromkeys((*path, beside)):
        for name in ("mpirun", "mpiexec"):
            program = Path(folder) / name
            if program.is_file() and program.resolve() not in seen:
                seen.add(program.resolve())
                launcher = _identify(str(program))
                if launcher is not None:
                    yield launcher
                    break


def choose_mpi_launcher(
    launchers: Iterable[MpiLauncher], served: Collection[MpiFlavour]
) -> MpiLauncher:
    """The first mpirun that there is a plug-in for; else the first, whose jobs use TCP. Pure.

    Args:
        launchers: What there is, see `mpi_launchers`.
        served: What there are plug-ins for.

    Raises:
        ValueError: There is no mpirun; the text says how to get one.
    """
    others = []
    for launcher in launchers:
        if launcher.flavour in served:
            return launcher
        others.append(launcher)
    if not others:
        raise ValueError("no mpirun on PATH; pip install mpich, or leave out --mpi")
    return others[0]


def version_of(text: str) -> tuple[str, str] | None:
    """Flavour and version from the output of ``mpirun --version``; None if it is another MPI."""
    match = re.search(r"\(Open MPI\)\s+([\w.]+)", text)
    if match:
        return "openmpi", match[1]
    match = re.search(r"HYDRA build details:\s+Version:\s+([\w.]+)", text)
    return ("mpich", match[1]) if match else None


def _identify(program: str) -> MpiLauncher | None:
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = version_of(done.stdout)
    if found is None:
        return None
    flavour, version = found
    return MpiLauncher(program, "openmpi" if flavour == "openmpi" else "mpich", version)
