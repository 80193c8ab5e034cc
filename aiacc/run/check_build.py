"""`aiaccrun --check-build`: what this installation has, and what to do about what it lacks."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

import aiacc
from aiacc import _core, mpi_library
from aiacc.run.programs import mpi_launchers

#: Front-end: (module of the framework, oldest version, how to get it).
_FRAMEWORKS = {
    "aiacc.array": ("numpy", (1, 23), "pip install numpy"),
    "aiacc.torch": ("torch", (2, 4), "pip install 'aiacc[torch]'"),
}


def report() -> str:
    """The whole report, a few lines of text. Imports no framework and initialises nothing."""
    info = _core.build_info()
    library = str(_core.config()["mpi_library"])
    mpi_problem = mpi_library.load(library)
    lines = [f"aiacc {aiacc.__version__} ({info['compiler']}, {info['build_type']})", ""]
    lines += ["Front-ends"] + [_frontend(name) for name in _FRAMEWORKS]
    lines += ["", "Engines"]
    for name, viable, detail in _core.engines():
        text = detail
        if name == "mpi" and not viable and mpi_problem:
            text = mpi_problem
        lines.append(_line(viable, name, text))
    lines += ["", "MPI"]
    has_plugin = info["mpi_flavour"] != "none"
    lines.append(
        _line(
            has_plugin,
            "plug-in",
            f"built against {info['mpi_flavour']} {info['mpi_version']} ({info['mpi_soname']})"
            if has_plugin
            else f"{info['mpi_reason']}; pip install mpich, then reinstall aiacc from source",
        )
    )
    launchers = list(mpi_launchers())
    for launcher in launchers:
        fits = launcher.flavour == info["mpi_flavour"]
        note = "" if fits or not has_plugin else "; another MPI than the plug-in's: engine tcp"
        text = f"{launcher.program} ({launcher.flavour} {launcher.version}{note})"
        lines.append(_line(fits, "mpirun", text))
    if not launchers:
        lines.append(_line(False, "mpirun", "none on PATH; pip install 'aiacc[mpi]'"))
    lines += ["", "CUDA", _line(bool(info["cuda_architectures"]), "cuda", info["cuda"])]
    return "\n".join(lines) + "\n"


def _frontend(name: str) -> str:
    framework, oldest, remedy = _FRAMEWORKS[name]
    if find_spec(framework) is None:
        return _line(False, name, f"{framework} is not installed; {remedy}")
    version = metadata.version(framework)
    if _numbers(version) < oldest:
        needed = ".".join(map(str, oldest))
        return _line(False, name, f"{framework} {version} is too old (needs {needed}); {remedy}")
    return _line(True, name, f"{framework} {version}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _line(good: bool, name: str, text: str) -> str:
    return f"  [{'X' if good else ' '}] {name:<12} {text}"
