"""`aiaccrun --check-build`: what this installation has, and what to do about what it lacks."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

import aiacc
from aiacc import _core, mpi_library
from aiacc.bootstrap.job_plan import MPI_ENGINES, default_lanes
from aiacc.config import MpiFlavour
from aiacc.run.programs import mpi_launchers

#: Front-end: (module of the framework, and the package that brings it; oldest version).
_FRAMEWORKS = {
    "aiacc.array": ("numpy", (1, 23)),
    "aiacc.torch": ("torch", (2, 4)),
    "aiacc.tensorflow": ("tensorflow", (2, 16)),
}


def report() -> str:
    """The whole report, a few lines of text. Imports no framework and initialises nothing."""
    info = _core.build_info()
    # Loads the first plug-in there is: which one a job uses is its launcher's matter.
    mpi_problem = mpi_library.load(str(_core.config()["mpi_library"]), None)
    lines = [f"aiacc {aiacc.__version__} ({info['compiler']}, {info['build_type']})", ""]
    lines += ["Front-ends"] + [_frontend(name) for name in _FRAMEWORKS]
    lines += ["", "Engines"]
    for name, viable, detail in _core.engines():
        text = detail
        if name in MPI_ENGINES and not viable and mpi_problem:
            text = mpi_problem
        lines.append(_line(viable, name, text))
    lines += [
        f"  lanes: {default_lanes(1, tuned=False)} on one host, {default_lanes(2, tuned=False)} on "
        f"several, up to {default_lanes(2, tuned=True)} with --autotune; set AIACC_LANES"
    ]
    lines += ["", "MPI"]
    served = mpi_library.built()
    for flavour, name in mpi_library.NAMES.items():
        lines.append(_line(flavour in served, name, _plugin(flavour, info["mpi_reason"])))
    launchers = list(mpi_launchers())
    for launcher in launchers:
        fits = launcher.flavour in served
        text = f"{launcher.program} ({launcher.flavour} {launcher.version})"
        lines.append(_line(fits, "mpirun", text + ("" if fits else "; its jobs do without MPI")))
    if not launchers:
        lines.append(_line(False, "mpirun", "none on PATH; pip install mpich"))
    lines += ["", "CUDA", _line(bool(info["cuda_architectures"]), "cuda", info["cuda"])]
    return "\n".join(lines) + "\n"


def _plugin(flavour: MpiFlavour, no_mpi: str) -> str:
    built_with = mpi_library.built().get(flavour)
    if built_with:
        return f"plug-in, built with {built_with}"
    reason = no_mpi or "no mpicc of it was found at build time"
    return f"{reason}; {mpi_library.HEADERS[flavour]}, then reinstall aiacc from source"


def _frontend(name: str) -> str:
    framework, oldest = _FRAMEWORKS[name]
    needed = ".".join(map(str, oldest))
    remedy = f"pip install '{framework}>={needed}'"
    if find_spec(framework) is None:
        return _line(False, name, f"{framework} is not installed; {remedy}")
    version = _version(framework)
    if _numbers(version) < oldest:
        return _line(False, name, f"{framework} {version} is too old (needs {needed}); {remedy}")
    return _line(True, name, f"{framework} {version}")


def _version(module: str) -> str:
    """The version of what brings a module: tensorflow may come from tensorflow-cpu."""
    brought = metadata.packages_distributions().get(module, [module])
    return metadata.version(brought[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _line(good: bool, name: str, text: str) -> str:
    return f"  [{'X' if good else ' '}] {name:<16} {text}"
